/* plugin.c -- where a backend's shared object is looked for, and what is checked before it is believed. */
#include "backend/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef OMNIQ_LIBDIR
#define OMNIQ_LIBDIR "lib"
#endif

typedef struct search {
    const char *file; /* "omniq-cuda.so" */
    char path[PATH_MAX];
} search;

/* Joins, and is true if the file exists; `suffix` is put between the directory and the name. */
static bool try_dir(search *s, const char *dir, size_t dir_bytes, const char *suffix)
{
    const int n = snprintf(s->path, sizeof s->path, "%.*s%s/%s", (int)dir_bytes, dir, suffix, s->file);
    return n > 0 && (size_t)n < sizeof s->path && access(s->path, R_OK) == 0;
}

static bool try_list(search *s, const char *list)
{
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, ":");
        if (n > 0 && try_dir(s, at, n, "")) return true;
        at += n + (at[n] == ':');
    }
    return false;
}

static bool try_beside(search *s, const char *file)
{
    const char *slash = strrchr(file, '/');
    if (!slash) return false;
    const size_t n = (size_t)(slash - file);
    return try_dir(s, file, n, "") || try_dir(s, file, n, "/../" OMNIQ_LIBDIR);
}

static bool locate(search *s)
{
    const char *list = getenv("OMNIQ_PLUGIN_PATH");
    if (list && *list) return try_list(s, list);
    Dl_info info;
    static const char here = 0; /* an address inside this library */
    if (dladdr(&here, &info) && info.dli_fname && try_beside(s, info.dli_fname)) return true;
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = '\0';
    return try_beside(s, self);
}

static const oq_backend *enter(void *object, const char *path, char *why, size_t why_bytes)
{
    oq_backend_entry_fn entry = NULL;
    void *symbol = dlsym(object, "oq_backend_entry");
    if (!symbol) {
        snprintf(why, why_bytes, "plugin '%s' has no symbol oq_backend_entry: it is no omniq plugin", path);
        return NULL;
    }
    memcpy(&entry, &symbol, sizeof entry);
    const oq_backend *backend = entry(OQ_BACKEND_ABI);
    if (!backend || backend->abi != OQ_BACKEND_ABI || backend->struct_size != sizeof(oq_backend)) {
        snprintf(why, why_bytes,
                 "plugin '%s' was built for another version of omniq: this one speaks interface %u", path,
                 OQ_BACKEND_ABI);
        return NULL;
    }
    return backend;
}

const oq_backend *oq_plugin_open(const char *name, char *why, size_t why_bytes)
{
    char file[64];
    search s = {.file = file};
    snprintf(file, sizeof file, "omniq-%s.so", name);
    if (!locate(&s)) {
        snprintf(why, why_bytes, "plugin '%s' was not found beside omniq or in OMNIQ_PLUGIN_PATH", file);
        return NULL;
    }
    void *object = dlopen(s.path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        const char *reason = dlerror();
        snprintf(why, why_bytes, "plugin '%s' cannot be opened: %s", s.path,
                 reason ? reason : "unknown reason");
        return NULL;
    }
    const oq_backend *backend = enter(object, s.path, why, why_bytes);
    if (!backend) dlclose(object);
    return backend;
}
