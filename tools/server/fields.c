/* fields.c -- the fields of a request, JSON or a form, as options of "generate". Names of OpenAI's interface have rows of
 * their own; every other name is one of the request's options, as the command knows it. A field that would be
 * ignored is refused. */
#include "parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SET = 64 };

typedef struct reading {
    server *server;
    http_request *q;
    http_reply *reply;
    const oq_option_info *set[MAX_SET]; /* by this request so far */
    int n_set;
} reading;

static bool refuse(reading *f, const char *field, const char *why)
{
    reply_error(f->reply, 400, field, "E_ARG", "%s: %s", field, why);
    return false;
}

/* An option under two names, or twice, would lose one of the two. */
static bool note(reading *f, const char *field, const oq_option_info *row)
{
    char why[160];
    for (int i = 0; i < f->n_set && row->type != OQ_OPTION_LIST; i++) {
        if (f->set[i] != row) continue;
        snprintf(why, sizeof why, "%s is given twice, under two names", row->name);
        return refuse(f, field, why);
    }
    if (f->n_set < MAX_SET) f->set[f->n_set++] = row;
    return true;
}

static bool set(reading *f, const char *field, const char *option, const char *text)
{
    job *j = f->q->job;
    if (!note(f, field, oq_option_find("generate", option))) return false;
    const oq_status st = oq_options_set(j->options, option, text);
    if (st == OQ_OK) return true;
    reply_error(f->reply, status_of(st), field, oq_status_name(st), "%s", oq_env_error(j->env));
    return false;
}

/* ---- OpenAI's names ------------------------------------------------------------------------------------------ */

static bool read_model(reading *f, const char *field, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name) return refuse(f, field, "the model's name is a text");
    if (strcmp(name, f->server->name) == 0) return true;
    reply_error(f->reply, 404, field, "model_not_found", "there is no model '%s'; this server has '%s'", name,
                f->server->name);
    return false;
}

static bool read_n(reading *f, const char *field, const json_t *value)
{
    char digits[32];
    if (json_is_string(value)) return set(f, field, "batch-count", json_string_value(value));
    if (!json_is_integer(value)) return refuse(f, field, "a whole number of pictures is needed");
    snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
    return set(f, field, "batch-count", digits);
}

/* One text: a batch of several would need an answer of its own. */
static bool read_prompt(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value);
    if (oq_options_get(f->q->job->options, "prompt")) return refuse(f, field, "is given twice");
    return text ? set(f, field, "prompt", text) : refuse(f, field, "one text is needed");
}

/* "1024x768" */
static bool read_size(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value), *by = text ? strchr(text, 'x') : NULL;
    char width[16];
    if (text && strcmp(text, "auto") == 0) return true;
    if (!by || by == text || (size_t)(by - text) >= sizeof width)
        return refuse(f, field, "'WIDTHxHEIGHT' or 'auto' is needed");
    snprintf(width, sizeof width, "%.*s", (int)(by - text), text);
    return set(f, field, "width", width) && set(f, field, "height", by + 1);
}

static bool read_response_format(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text && strcmp(text, "b64_json") == 0) return true;
    return refuse(f, field,
                  "only 'b64_json': this server keeps no files to link to (a request with 'Accept: "
                  "image/png' gets the picture itself)");
}

/* The types that a client is told of; whether this build writes one is the library's to say. */
static bool read_output_format(reading *f, const char *field, const json_t *value)
{
    static const char *const pictures[] = {"png", "jpeg", "webp"}, *const videos[] = {"mp4", "webp"};
    job *j = f->q->job;
    const bool video = oq_model_makes_video(f->server->model);
    const char *const *const types = video ? videos : pictures, *text = json_string_value(value);
    for (int i = 0; text && i < (video ? 2 : 3); i++)
        if (strcmp(types[i], text) == 0) return snprintf(j->ending, sizeof j->ending, "%s", text), true;
    return refuse(f, field, video ? "one of mp4, webp is needed" : "one of png, jpeg, webp is needed");
}

/* What cannot change the picture is taken where it says so itself. */
static bool read_quality(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text && (strcmp(text, "auto") == 0 || strcmp(text, "standard") == 0)) return true;
    return refuse(f, field, "only 'auto': steps and size say how much work goes into a picture");
}

static bool read_background(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text && (strcmp(text, "auto") == 0 || strcmp(text, "opaque") == 0)) return true;
    return refuse(f, field, "only 'auto' and 'opaque': pictures have no transparency");
}

static bool read_stream(reading *f, const char *field, const json_t *value)
{
    const char *text = json_string_value(value);
    const bool yes = json_is_true(value) || (text && strcmp(text, "true") == 0);
    if (!yes && !json_is_false(value) && !(text && strcmp(text, "false") == 0))
        return refuse(f, field, "true or false is needed");
    if (yes && oq_model_makes_video(f->server->model))
        return refuse(f, field, "videos are not streamed; their progress is at /v1/videos/ID");
    f->q->job->stream = yes;
    return true;
}

static bool read_partial_images(reading *f, const char *field, const json_t *value)
{
    char *end = NULL;
    const char *text = json_string_value(value);
    const long long n = text ? strtoll(text, &end, 10) : (long long)json_integer_value(value);
    if (!(text ? *text && !*end : json_is_integer(value)) || n < 0 || n > MAX_PARTIAL)
        return refuse(f, field, "a whole number from 0 to 3 is needed");
    f->q->job->partial_images = (int)n;
    return true;
}

static bool no_previews(reading *f, const char *field, const json_t *value)
{
    (void)value;
    return refuse(f, field, "say partial_images, and stream: true");
}

static bool read_user(reading *f, const char *field, const json_t *value)
{
    return json_is_string(value) ? true : refuse(f, field, "a text is needed");
}

static bool no_mask(reading *f, const char *field, const json_t *value)
{
    (void)value;
    return refuse(f, field, "no family of this build paints within a mask");
}

static bool no_compression(reading *f, const char *field, const json_t *value)
{
    (void)value;
    return refuse(f, field, "each type is written in one quality");
}

static bool no_seconds(reading *f, const char *field, const json_t *value)
{
    (void)value;
    return refuse(f, field, "say num_frames and fps");
}

/* ---- pictures within JSON -------------------------------------------------------------------------------------- */

static bool read_picture(reading *f, const char *field, const char *text)
{
    char path[MAX_PATH];
    size_t n = 0;
    if (strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0)
        return refuse(f, field,
                      "this server fetches nothing: send the picture itself, in base64 or in a form");
    uint8_t *bytes = base64_decode(text, &n);
    if (!bytes || n == 0) return free(bytes), refuse(f, field, "this is no base64");
    if (f->q->job->n_files == MAX_FILES) return free(bytes), refuse(f, field, "too many pictures");
    FILE *file = upload_begin(f->server, f->q->job, path, sizeof path) ? fopen(path, "wb") : NULL;
    const bool ok = file && fwrite(bytes, 1, n, file) == n;
    free(bytes);
    if ((file && fclose(file) != 0) || !ok) {
        reply_error(f->reply, 500, field, "E_IO", "%s: the picture cannot be kept on disk: %s", field,
                    strerror(errno));
        return false;
    }
    return set(f, field, "image", path);
}

/* A form's pictures are files already: http.c has set them. */
static bool read_image(reading *f, const char *field, const json_t *value)
{
    if (f->q->form) return refuse(f, field, "a form sends its pictures as files");
    if (json_is_string(value)) return read_picture(f, field, json_string_value(value));
    if (!json_is_array(value) || json_array_size(value) == 0)
        return refuse(f, field, "a picture in base64, or a list of them, is needed");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *text = json_string_value(json_array_get(value, i));
        if (!text) return refuse(f, field, "a picture in base64 is needed");
        if (!read_picture(f, field, text)) return false;
    }
    return true;
}

/* ---- all the others -------------------------------------------------------------------------------------------- */

static bool set_json(reading *f, const char *field, const oq_option_info *row, json_t *value)
{
    job *j = f->q->job;
    if (!note(f, field, row)) return false;
    json_t *object = json_pack("{s:O}", row->name, value);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    const oq_status st = text ? oq_options_set_json(j->options, text) : OQ_E_NOMEM;
    free(text);
    if (st == OQ_OK) return true;
    reply_error(f->reply, status_of(st), field, oq_status_name(st), "%s", oq_env_error(j->env));
    return false;
}

/* What a client may set is what its row says: an option of the request that names no file. The row is found as the library
 * will find it, whatever the spelling; one letter is the command line's alone. */
static bool read_option(reading *f, const char *field, json_t *value)
{
    const oq_option_info *row = strlen(field) > 1 ? oq_option_find("generate", field) : NULL;
    if (!row) {
        const oq_status st = strlen(field) > 1 ? oq_options_set(f->q->job->options, field, "") : OQ_E_ARG;
        if (strlen(field) < 2 || st == OQ_OK) return refuse(f, field, "there is no such field");
        reply_error(f->reply, status_of(st), field, oq_status_name(st), "%s", oq_env_error(f->q->job->env));
        return false;
    }
    if (strcmp(row->name, "image") == 0) return read_image(f, field, value);
    if (strcmp(row->name, "prompt") == 0) return read_prompt(f, field, value);
    if (strcmp(row->group, "request") != 0)
        return refuse(f, field, "was decided when the server was started, with its model");
    if (row->value && strcmp(row->value, "FILE") == 0)
        return refuse(f, field, "names of files mean nothing to a server");
    if (json_is_string(value)) return set(f, field, row->name, json_string_value(value));
    return set_json(f, field, row, value);
}

static const struct special {
    const char *field;
    bool (*read)(reading *f, const char *field, const json_t *value);
} specials[] = {
    {"model", read_model},
    {"n", read_n},
    {"size", read_size},
    {"response_format", read_response_format},
    {"output_format", read_output_format},
    {"output_compression", no_compression},
    {"quality", read_quality},
    {"background", read_background},
    {"stream", read_stream},
    {"partial_images", read_partial_images},
    {"previews", no_previews},
    {"user", read_user},
    {"image", read_image},
    {"image[]", read_image},
    {"input_reference", read_image},
    {"mask", no_mask},
    {"seconds", no_seconds},
};

static bool read_field(reading *f, const char *field, json_t *value)
{
    if (json_is_null(value)) return true;
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        if (strcmp(specials[i].field, field) == 0) return specials[i].read(f, field, value);
    return read_option(f, field, value);
}

/* Partial pictures are previews; without a stream nobody would see them. */
static bool ask_previews(reading *f)
{
    char digits[16];
    const job *j = f->q->job;
    if (j->partial_images == 0) return true;
    if (!j->stream) return refuse(f, "partial_images", "has no effect without stream: true");
    snprintf(digits, sizeof digits, "%d", j->partial_images);
    return set(f, "partial_images", "previews", digits);
}

/* A build may lack a type. */
static bool can_be_written(reading *f)
{
    char name[16];
    job *j = f->q->job;
    snprintf(name, sizeof name, "x.%s", j->ending);
    const oq_status st = oq_model_check_output(j->env, f->server->model, name);
    if (st == OQ_OK) return true;
    reply_error(f->reply, status_of(st), "output_format", oq_status_name(st), "%s", oq_env_error(j->env));
    return false;
}

bool fields_read(server *s, http_request *q, http_reply *r)
{
    reading f = {.server = s, .q = q, .reply = r};
    const char *field = NULL;
    json_t *value = NULL;
    const char *const picture = q->accepted ? q->accepted : "png";
    snprintf(q->job->ending, sizeof q->job->ending, "%s", oq_model_makes_video(s->model) ? "mp4" : picture);
    const oq_status st = oq_options_copy(s->given, q->job->options);
    if (st != OQ_OK) {
        reply_error(r, 500, NULL, oq_status_name(st), "%s", oq_env_error(q->job->env));
        return false;
    }
    json_object_foreach(q->fields, field, value)
    {
        if (!read_field(&f, field, value)) return false;
    }
    if (!ask_previews(&f) || !can_be_written(&f)) return false;
    const char *prompt = oq_options_get(q->job->options, "prompt");
    if (prompt && *prompt) return true;
    reply_error(r, 400, "prompt", "E_ARG", "prompt: a text is needed");
    return false;
}
