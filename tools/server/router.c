/* router.c -- the list of routes: method and path to the function that answers. */
#include "parts.h"

#include <string.h>

static const route routes[] = {
    {"GET", "/health", false, true, answer_health},
    {"GET", "/metrics", false, false, answer_metrics},
    {"GET", "/v1/models", false, false, answer_models},
    {"GET", "/v1/models/*", false, false, answer_model},
    {"GET", "/plan", false, false, answer_plan},
    {"POST", "/v1/images/generations", true, false, answer_images},
    {"POST", "/v1/images/edits", true, false, answer_edits},
    {"POST", "/v1/videos", true, false, answer_videos_post},
    {"GET", "/v1/videos", false, false, answer_videos_list},
    {"GET", "/v1/videos/*", false, false, answer_video},
    {"DELETE", "/v1/videos/*", false, false, answer_video_delete},
    {"GET", "/v1/videos/*/content", false, false, answer_video_content},
};

enum { N_ROUTES = sizeof routes / sizeof routes[0], ID_SIZE = 40 };

/* '*' takes one word without '/'; id[ID_SIZE] gets it. */
static bool matches(const char *pattern, const char *path, char *id)
{
    id[0] = '\0';
    while (*pattern && *path) {
        if (*pattern != '*') {
            if (*pattern++ != *path++) return false;
            continue;
        }
        const size_t n = strcspn(path, "/");
        if (n == 0 || n >= ID_SIZE) return false;
        memcpy(id, path, n);
        id[n] = '\0';
        path += n;
        pattern++;
    }
    return !*pattern && !*path;
}

const route *route_find(const char *method, const char *path, char *id, http_reply *r)
{
    const char *other = NULL;
    if (strcmp(method, "HEAD") == 0) method = "GET"; /* the library leaves out the body */
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!matches(routes[i].path, path, id)) continue;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
        other = routes[i].method;
    }
    if (other)
        reply_error(r, 405, NULL, "method_not_allowed", "%s takes %s, not %s", path, other, method);
    else
        reply_error(
            r, 404, NULL, "not_found",
            "there is nothing at %s; this server has /v1/images/generations, /v1/images/edits, /v1/videos, "
            "/v1/models, /plan, /health and /metrics",
            path);
    return NULL;
}
