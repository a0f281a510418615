/* test_server.c -- what `omniq serve` answers, over real sockets: pictures are those of the library, wrong requests get their
 * sentence, forms are read to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "media/image.h"

#define SERVER_TESTS "server"
#include "server/server_world.h"

/* ---- pictures ------------------------------------------------------------------------------------------------ */

static oq_image pixels_of(world *w, const void *bytes, size_t n)
{
    oq_image image;
    char path[1100];
    snprintf(path, sizeof path, "%s/answer.png", w->dir);
    scratch_write(w->dir, "answer.png", bytes, n);
    if (oq_image_read(w->env, path, &image) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    return image;
}

static oq_media *by_library(oq_env *env, const char *request)
{
    oq_options *o = NULL;
    oq_model *model = NULL;
    oq_media *media = NULL;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", TOYBOX), OQ_OK);
    assert_int_equal(oq_options_set_json(o, request), OQ_OK);
    if (oq_model_open(env, o, &model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    oq_model_close(model);
    oq_options_free(o);
    return media;
}

static void pictures_are_the_librarys(void **state)
{
    world *w = *state;
    start_toybox(w);
    oq_media *media =
        by_library(w->env, "{\"prompt\":\"a red ring\",\"width\":64,\"height\":64,\"steps\":2,\"seed\":5}");
    http_answer a = ask_png(w, "{\"prompt\":\"a red ring\"," SMALL ",\"seed\":5}");
    http_answer again =
        ask_png(w, "{\"prompt\":\"a red ring\"," SMALL ",\"seed\":5,\"model\":\"toybox\",\"n\":1,"
                   "\"response_format\":\"b64_json\",\"quality\":\"auto\",\"user\":\"me\"}");
    assert_int_equal(a.n, again.n);
    assert_memory_equal(a.body, again.body, a.n);
    oq_image image = pixels_of(w, a.body, a.n);
    assert_int_equal(image.width, 64);
    assert_int_equal(image.height, 64);
    assert_memory_equal(image.pixels, oq_media_pixels(media, 0), 64 * 64 * 3);
    oq_free(w->env, image.pixels);
    oq_media_free(media);
    http_answer_free(&a);
    http_answer_free(&again);
    stop(w);
}

/* Two pictures of a batch have seeds of their own, and what is in JSON is what a client that accepts PNG gets. */
static void json_holds_the_same_files(void **state)
{
    world *w = *state;
    start_toybox(w);
    oq_json *json = http_post_json(w->env, &w->server, IMAGES,
                                   "{\"prompt\":\"a star\"," SMALL ",\"seed\":8,\"n\":2}", 200);
    const oq_json *data = oq_json_get(json, "data");
    assert_int_equal(oq_json_size(data), 2);
    assert_string_equal(oq_json_string(oq_json_get(json, "size")), "64x64");
    assert_string_equal(oq_json_string(oq_json_get(json, "output_format")), "png");
    for (size_t i = 0; i < 2; i++) {
        char request[160], edit[64];
        const oq_json *item = oq_json_at(data, i);
        assert_int_equal(oq_json_int(oq_json_get(item, "seed"), -1), 8 + (int)i);
        snprintf(request, sizeof request, "{\"prompt\":\"a star\"," SMALL ",\"seed\":%d}", 8 + (int)i);
        http_answer a = ask_png(w, request);
        const char *text = oq_json_string(oq_json_get(item, "b64_json"));
        assert_int_equal(strlen(text), (a.n + 2) / 3 * 4);
        /* the text is taken back as the picture that an edit begins with */
        snprintf(edit, sizeof edit, "\",\"prompt\":\"a ring\"," SMALL ",\"strength\":0.5}");
        char *body = malloc(strlen(text) + 128);
        assert_non_null(body);
        sprintf(body, "{\"image\":\"data:image/png;base64,%s%s", text, edit);
        oq_json_free(http_post_json(w->env, &w->server, "/v1/images/edits", body, 200));
        free(body);
        http_answer_free(&a);
    }
    oq_json_free(json);
    stop(w);
}

/* A form's picture gives what the same picture gives in base64: both reach the model as the same file. */
/* "Accept: image/webp" gets WebP, where this build writes it. */
static void accept_says_the_type(void **state)
{
    world *w = *state;
    static const char body[] = "{\"prompt\":\"a star\"," SMALL "}";
    start_toybox(w);
    http_answer a =
        http_ask(&w->server, "POST", IMAGES, JSON "Accept: image/webp\r\n", body, sizeof body - 1);
    if (a.status == 200) {
        assert_string_equal(a.type, "image/webp");
        assert_memory_equal(a.body, "RIFF", 4);
    } else {
        assert_int_equal(a.status, 400);
    }
    http_answer_free(&a);
    stop(w);
}

static void a_form_brings_a_picture(void **state)
{
    world *w = *state;
    start_toybox(w);
    http_answer first = ask_png(w, "{\"prompt\":\"a blue star\"," SMALL ",\"seed\":1}");
    static const char begin[] =
        "--frontier\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na red ring\r\n"
        "--frontier\r\nContent-Disposition: form-data; name=\"seed\"\r\n\r\n4\r\n"
        "--frontier\r\nContent-Disposition: form-data; name=\"size\"\r\n\r\n64x64\r\n"
        "--frontier\r\nContent-Disposition: form-data; name=\"steps\"\r\n\r\n2\r\n"
        "--frontier\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n"
        "Content-Type: image/png\r\n\r\n";
    static const char end[] = "\r\n--frontier--\r\n";
    const size_t n = sizeof begin - 1 + first.n + sizeof end - 1;
    char *body = malloc(n);
    assert_non_null(body);
    memcpy(body, begin, sizeof begin - 1);
    memcpy(body + sizeof begin - 1, first.body, first.n);
    memcpy(body + n - (sizeof end - 1), end, sizeof end - 1);
    http_answer a =
        http_ask(&w->server, "POST", "/v1/images/edits",
                 "Content-Type: multipart/form-data; boundary=frontier\r\nAccept: image/png\r\n", body, n);
    if (a.status != 200) fail_msg("%d %s", a.status, (char *)a.body);
    /* what the picture remembers of it is no place on the server, and no count of its uploads */
    assert_non_null(memmem(a.body, a.n, "\"image\": [\"upload\"]", 19));
    assert_null(memmem(a.body, a.n, OMNIQ_BINARY_DIR, strlen(OMNIQ_BINARY_DIR)));
    assert_null(memmem(a.body, a.n, OMNIQ_SOURCE_DIR, strlen(OMNIQ_SOURCE_DIR)));
    char path[1100], request[1300];
    scratch_write(w->dir, "first.png", first.body, first.n);
    snprintf(path, sizeof path, "%s/first.png", w->dir);
    snprintf(
        request, sizeof request,
        "{\"prompt\":\"a red ring\",\"seed\":4,\"width\":64,\"height\":64,\"steps\":2,\"image\":[\"%s\"]}",
        path);
    oq_media *media = by_library(w->env, request);
    oq_image image = pixels_of(w, a.body, a.n);
    assert_memory_equal(image.pixels, oq_media_pixels(media, 0), 64 * 64 * 3);
    oq_free(w->env, image.pixels);
    oq_media_free(media);
    free(body);
    http_answer_free(&a);
    http_answer_free(&first);
    stop(w);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

/* HTTP/1.0: a body without chunks, until the server closes. */
static http_answer ask_stream(const world *w, const char *path, const char *json)
{
    char head[256];
    const int fd = http_connect(&w->server);
    const int n =
        snprintf(head, sizeof head, "POST %s HTTP/1.0\r\nHost: x\r\n" JSON "Content-Length: %zu\r\n\r\n",
                 path, strlen(json));
    http_send(fd, head, (size_t)n);
    http_send(fd, json, strlen(json));
    http_answer a = http_receive(fd);
    if (a.status != 200) fail_msg("%s: %d %s", json, a.status, (char *)a.body);
    assert_string_equal(a.type, "text/event-stream");
    return a;
}

/* The data of the event at *at, whose name has to be this; *at goes on. The caller's. */
static oq_json *next_event(const world *w, char **at, const char *name)
{
    oq_json *json = NULL;
    char head[128];
    const int n = snprintf(head, sizeof head, "event: %s\ndata: ", name);
    char *const end = strstr(*at, "\n\n");
    if (!end || strncmp(*at, head, (size_t)n) != 0) fail_msg("no event %s at: %.60s", name, *at);
    if (oq_json_parse(w->env, *at + n, (size_t)(end - *at - n), name, &json) != OQ_OK)
        fail_msg("%s", oq_env_error(w->env));
    assert_string_equal(oq_json_string(oq_json_get(json, "type")), name);
    *at = end + 2;
    return json;
}

static const char *base64_of(const oq_json *json)
{
    return oq_json_string(oq_json_get(json, "b64_json"));
}

/* Looking on does not change what is made; the picture that is not done is another one. */
static void events_show_the_picture_before_it_is_done(void **state)
{
    world *w = *state;
    start_toybox(w);
    oq_json *plain =
        http_post_json(w->env, &w->server, IMAGES,
                       "{\"prompt\":\"a red ring\",\"size\":\"64x64\",\"steps\":6,\"seed\":5}", 200);
    http_answer a = ask_stream(w, IMAGES,
                               "{\"prompt\":\"a red ring\",\"size\":\"64x64\",\"steps\":6,\"seed\":5,"
                               "\"stream\":true,\"partial_images\":2}");
    char *at = (char *)a.body;
    oq_json *first = next_event(w, &at, "image_generation.partial_image");
    oq_json *second = next_event(w, &at, "image_generation.partial_image");
    oq_json *last = next_event(w, &at, "image_generation.completed");
    assert_string_equal(at, "");
    assert_int_equal(oq_json_int(oq_json_get(first, "partial_image_index"), -1), 0);
    assert_int_equal(oq_json_int(oq_json_get(second, "partial_image_index"), -1), 1);
    assert_int_equal(oq_json_int(oq_json_get(first, "step"), -1), 2);
    assert_int_equal(oq_json_int(oq_json_get(second, "step"), -1), 4);
    assert_int_equal(oq_json_int(oq_json_get(second, "steps"), -1), 6);
    assert_true(strncmp(base64_of(first), "iVBORw0KGgo", 11) == 0); /* a PNG */
    assert_string_not_equal(base64_of(first), base64_of(second));
    assert_string_equal(base64_of(last), base64_of(oq_json_at(oq_json_get(plain, "data"), 0)));
    oq_json_free(plain);
    oq_json_free(first);
    oq_json_free(second);
    oq_json_free(last);
    http_answer_free(&a);
    stop(w);
}

static void events_end_with_an_error(void **state)
{
    world *w = *state;
    start_toybox(w);
    http_answer a =
        ask_stream(w, "/v1/images/edits", "{\"prompt\":\"a\",\"image\":\"aGVsbG8=\",\"stream\":\"true\"}");
    char *at = (char *)a.body;
    oq_json *error = next_event(w, &at, "error");
    const char *message = oq_json_string(oq_json_get(oq_json_get(error, "error"), "message"));
    assert_non_null(message);
    assert_non_null(strstr(message, "image: "));
    assert_string_equal(at, "");
    oq_json_free(error);
    http_answer_free(&a);
    stop(w);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

static void wrong_requests_get_their_sentence(void **state)
{
    static const struct {
        const char *body;
        int status;
        const char *param, *text;
    } rows[] = {
        {"{", 400, NULL, "the body is no JSON: line 1"},
        {"[]", 400, NULL, "the body has to be a JSON object"},
        {"{}", 400, "prompt", "prompt: a text is needed"},
        {"{\"prompt\":\"\"}", 400, "prompt", "prompt: a text is needed"},
        {"{\"prompt\":3}", 400, "prompt", "prompt: one text is needed"},
        {"{\"prompt\":[\"a\",\"b\"]}", 400, "prompt", "prompt: one text is needed"},
        {"{\"prompt\":\"a\",\"Prompt\":\"b\"}", 400, "Prompt", "given twice"},
        {"{\"prompt\":\"a\",\"Prompt-File\":\"/etc/hostname\"}", 400, "Prompt-File",
         "names of files mean nothing"},
        {"{\"prompt\":\"a\",\"PROMPT_FILE\":\"/etc/hostname\"}", 400, "PROMPT_FILE",
         "names of files mean nothing"},
        {"{\"prompt\":\"a\",\"i\":\"/etc/hostname\"}", 400, "i", "there is no such field"},
        {"{\"prompt\":\"a\",\"m\":\"/nowhere\"}", 400, "m", "there is no such field"},
        {"{\"prompt\":\"a\",\"Image\":\"/etc/hostname\"}", 400, "Image", "no base64"},
        {"{\"prompt\":\"a\",\"Quantization\":\"int8\"}", 400, "Quantization", "when the server was started"},
        {"{\"prompt\":\"a\",\"steps\":3,\"num_inference_steps\":4}", 400, "num_inference_steps",
         "given twice"},
        {"{\"prompt\":\"a\",\"n\":1,\"batch_count\":2}", 400, "batch_count", "given twice"},
        {"{\"prompt\":\"a\",\"size\":\"64x64\",\"width\":128}", 400, "width", "given twice"},
        {"{\"prompt\":\"a\",\"input_reference\":\"aGVsbG8=\"}", 400, "image", "/v1/images/edits"},
        {"{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, NULL, "duplicate object key"},
        {"{\"prompt\":\"a\",\"stepz\":3}", 400, "stepz", "the nearest is 'steps'"},
        {"{\"prompt\":\"a\",\"steps\":0}", 400, "steps", "steps must be from 1 to 1000, not 0"},
        {"{\"prompt\":\"a\",\"seed\":1.5}", 400, "seed", "seed"},
        {"{\"prompt\":\"a\",\"size\":\"big\"}", 400, "size", "'WIDTHxHEIGHT' or 'auto'"},
        {"{\"prompt\":\"a\",\"size\":\"64x\"}", 400, "size", "height"},
        {"{\"prompt\":\"a\",\"width\":33}", 400, NULL, "both sides must be multiples of 16"},
        {"{\"prompt\":\"a\",\"model\":\"other\"}", 404, "model", "this server has 'toybox'"},
        {"{\"prompt\":\"a\",\"quantization\":\"int8\"}", 400, "quantization", "when the server was started"},
        {"{\"prompt\":\"a\",\"prompt_file\":\"/etc/hostname\"}", 400, "prompt_file",
         "names of files mean nothing"},
        {"{\"prompt\":\"a\",\"output\":\"/tmp/x.png\"}", 400, "output", "when the server was started"},
        {"{\"prompt\":\"a\",\"image\":\"/etc/hostname\"}", 400, "image", "no base64"},
        {"{\"prompt\":\"a\",\"mask\":\"x\"}", 400, "mask", "within a mask"},
        {"{\"prompt\":\"a\",\"stream\":\"yes\"}", 400, "stream", "true or false"},
        {"{\"prompt\":\"a\",\"stream\":true,\"n\":2}", 400, "stream", "events are of one picture, n is 2"},
        {"{\"prompt\":\"a\",\"stream\":true,\"partial_images\":4}", 400, "partial_images", "from 0 to 3"},
        {"{\"prompt\":\"a\",\"partial_images\":2}", 400, "partial_images", "no effect without stream"},
        {"{\"prompt\":\"a\",\"previews\":2}", 400, "previews", "say partial_images"},
        {"{\"prompt\":\"a\",\"response_format\":\"url\"}", 400, "response_format", "only 'b64_json'"},
        {"{\"prompt\":\"a\",\"output_format\":\"mp4\"}", 400, "output_format", "png"},
        {"{\"prompt\":\"a\",\"output_format\":\"../x\"}", 400, "output_format", "png"},
        {"{\"prompt\":\"a\",\"output_format\":\"ppm\"}", 400, "output_format", "png"},
        {"{\"prompt\":\"a\",\"output_format\":\"y4m\"}", 400, "output_format", "png"},
        {"{\"prompt\":\"a\",\"background\":\"transparent\"}", 400, "background", "no transparency"},
        {"{\"prompt\":\"a\",\"n\":0}", 400, "n", "batch-count"},
        {"{\"prompt\":\"a\",\"n\":2.5}", 400, "n", "whole number"},
        {"{\"prompt\":\"a\",\"negative_prompt\":\"b\"}", 400, NULL,
         "a negative prompt has no effect with guidance scale 0"},
    };
    world *w = *state;
    start_toybox(w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        oq_json *json = http_post_json(w->env, &w->server, IMAGES, rows[i].body, rows[i].status);
        const oq_json *error = oq_json_get(json, "error");
        const char *message = oq_json_string(oq_json_get(error, "message"));
        const char *param = oq_json_string(oq_json_get(error, "param"));
        if (!message || !strstr(message, rows[i].text))
            fail_msg("%s: %s", rows[i].body, message ? message : "no message");
        if (rows[i].param) assert_string_equal(param, rows[i].param);
        assert_string_equal(oq_json_string(oq_json_get(error, "type")), "invalid_request_error");
        oq_json_free(json);
    }
    oq_json_free(http_post_json(w->env, &w->server, IMAGES, /* a text, not the name of a file */
                                "{\"prompt\":\"a\",\"size\":\"32x32\",\"steps\":1,\"guidance_scale\":2,"
                                "\"negative_prompt\":\"@/nowhere\"}",
                                200));
    oq_json_free(http_post_json(w->env, &w->server, "/v1/images/edits", "{\"prompt\":\"a\"}", 400));
    oq_json_free(
        http_post_json(w->env, &w->server, "/v1/images/edits", "{\"prompt\":\"a\",\"image\":null}", 400));
    oq_json_free(
        http_post_json(w->env, &w->server, "/v1/images/edits", "{\"prompt\":\"a\",\"image\":\"%%\"}", 400));
    oq_json_free(http_post_json(w->env, &w->server, "/v1/images/edits",
                                "{\"prompt\":\"a\",\"image\":\"http://example.org/a.png\"}", 400));
    oq_json_free(http_post_json(w->env, &w->server, "/v1/images/edits",
                                "{\"prompt\":\"a\",\"image\":\"aGVsbG8=\"}", 400));
    oq_json_free(http_post_json(w->env, &w->server, "/v1/videos", "{\"prompt\":\"a\"}", 400));
    stop(w);
}

static void paths_methods_and_bodies(void **state)
{
    world *w = *state;
    start(w, (const char *const[]){"-m", TOYBOX, "-q", "--max-body", "1", NULL});
    static char large[(1 << 20) + 2];
    memset(large, ' ', sizeof large - 1);
    expect_status(w, "GET", "/", "", "", 404);
    expect_status(w, "POST", IMAGES "?n=2", JSON, "{\"prompt\":\"a\"}", 400);
    expect_status(w, "GET", "/v1/models/other", "", "", 404);
    expect_status(w, "GET", "/v1/models/toybox", "", "", 200);
    expect_status(w, "GET", "/v1/videos/video_0", "", "", 404);
    expect_status(w, "DELETE", "/v1/models", "", "", 405);
    expect_status(w, "GET", IMAGES, "", "", 405);
    expect_status(w, "POST", IMAGES, "", "{}", 415);
    expect_status(w, "POST", IMAGES, "Content-Type: text/plain\r\n", "a", 415);
    expect_status(w, "POST", IMAGES, "Content-Type: multipart/form-data\r\n", "a", 400);
    expect_status(w, "POST", IMAGES, JSON, large, 413);
    /* the same without saying so before */
    const int fd = http_connect(&w->server);
    static const char head[] =
        "POST " IMAGES " HTTP/1.1\r\nHost: x\r\n" JSON "Transfer-Encoding: chunked\r\n\r\n100001\r\n";
    http_send(fd, head, sizeof head - 1);
    http_send(fd, large, sizeof large - 1);
    http_send(fd, "\r\n0\r\n\r\n", 7);
    http_answer a = http_receive(fd);
    assert_int_equal(a.status, 413);
    http_answer_free(&a);
    oq_json *plan = http_get_json(w->env, &w->server, "/plan", 200);
    assert_non_null(oq_json_get(oq_json_get(plan, "components"), "transformer"));
    oq_json_free(plan);
    stop(w);
}

static void forms_are_read_to_the_byte(void **state)
{
    static const char nul[] =
        "--frontier\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\0b\r\n--frontier--\r\n";
    static const char twice[] =
        "--frontier\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n"
        "--frontier\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nb\r\n--frontier--\r\n";
    static const char cut[] = "--frontier\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na red ri";
    static const char file[] =
        "--frontier\r\nContent-Disposition: form-data; name=\"mask\"; filename=\"m.png\"\r\n\r\na\r\n"
        "--frontier--\r\n";
    static const char no_name[] = "--frontier\r\nContent-Disposition: form-data\r\n\r\na\r\n--frontier--\r\n";
    static const char no_name_file[] =
        "--frontier\r\nContent-Disposition: form-data; filename=\"a.png\"\r\n\r\na\r\n--frontier--\r\n";
    static const struct {
        const char *body;
        size_t n;
        const char *text;
    } rows[] = {{no_name, sizeof no_name - 1, "has no name"},
                {no_name_file, sizeof no_name_file - 1, "has no name"},
                {nul, sizeof nul - 1, "no NUL"},
                {twice, sizeof twice - 1, "given twice"},
                {file, sizeof file - 1, "mask"},
                {cut, sizeof cut - 1, "cut off"}};
    world *w = *state;
    start_toybox(w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        http_answer a =
            http_ask(&w->server, "POST", "/v1/images/edits",
                     "Content-Type: multipart/form-data; boundary=frontier\r\n", rows[i].body, rows[i].n);
        assert_int_equal(a.status, 400);
        if (!strstr((const char *)a.body, rows[i].text)) fail_msg("%s", (char *)a.body);
        http_answer_free(&a);
    }
    stop(w);
}

/* A proxy before the server may take the other length for the right one. */
static void a_body_has_one_length(void **state)
{
    static const char *const more[] = {JSON "Content-Length: 3\r\n", JSON "Transfer-Encoding: chunked\r\n"};
    world *w = *state;
    start_toybox(w);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        http_answer a = http_ask(&w->server, "POST", IMAGES, more[i], "{}", 2);
        assert_int_equal(a.status, 400);
        if (!strstr((const char *)a.body, "a body has one length")) fail_msg("%s", (char *)a.body);
        assert_non_null(strcasestr(a.head, "\r\nConnection: close"));
        http_answer_free(&a);
    }
    stop(w);
}

/* A field as one form's only text, in as many pieces as the library makes of it. */
static http_answer ask_form(const world *w, const char *head, const char *text)
{
    const size_t n = strlen(head) + strlen(text) + 64;
    char *body = malloc(n);
    assert_non_null(body);
    const int length = snprintf(body, n, "--frontier\r\n%s\r\n\r\n%s\r\n--frontier--\r\n", head, text);
    http_answer a =
        http_ask(&w->server, "POST", "/v1/images/edits",
                 "Content-Type: multipart/form-data; boundary=frontier\r\n", body, (size_t)length);
    free(body);
    return a;
}

static void texts_of_forms_are_utf8(void **state)
{
    enum { N = 60000 };
    static char text[3 * N + 1];
    world *w = *state;
    start_toybox(w);
    for (int i = 0; i < N; i++) memcpy(text + 3 * i, "\xe2\x82\xac", 3);
    const char *const prompt = "Content-Disposition: form-data; name=\"prompt\"";
    http_answer whole = ask_form(w, prompt, text); /* it arrives: what is missing is the picture */
    if (!strstr((const char *)whole.body, "at least one picture")) fail_msg("%s", (char *)whole.body);
    text[3 * N - 1] = '\0';
    http_answer cut = ask_form(w, prompt, text);
    if (!strstr((const char *)cut.body, "not UTF-8")) fail_msg("%s", (char *)cut.body);
    http_answer name = ask_form(w, "Content-Disposition: form-data; name=\"\xff\xfe\"; filename=\"a\"", "a");
    assert_int_equal(name.status, 400);
    assert_true(name.n > 0);
    http_answer_free(&whole);
    http_answer_free(&cut);
    http_answer_free(&name);
    http_answer no_picture =
        ask_form(w, "Content-Disposition: form-data; name=\"image\"; filename=\"a\"", "no picture");
    assert_int_equal(no_picture.status, 400); /* no prompt either */
    http_answer_free(&no_picture);
    oq_json *json = http_post_json(w->env, &w->server, "/v1/images/edits",
                                   "{\"prompt\":\"a\",\"image\":\"aGVsbG8=\"}", 400);
    const char *message = oq_json_string(oq_json_get(oq_json_get(json, "error"), "message"));
    if (!message || strncmp(message, "image: ", 7) != 0) fail_msg("%s", message); /* no path of the server */
    oq_json_free(json);
    stop(w);
}

static void a_key_is_asked_for(void **state)
{
    world *w = *state;
    char path[1100];
    scratch_text(w->dir, "key", "sesame\n");
    snprintf(path, sizeof path, "%s/key", w->dir);
    start(w, (const char *const[]){"-m", TOYBOX, "-q", "--api-key-file", path, NULL});
    expect_status(w, "GET", "/health", "", "", 200);
    expect_status(w, "GET", "/v1/models", "", "", 401);
    expect_status(w, "GET", "/v1/models", "Authorization: Bearer sesam\r\n", "", 401);
    expect_status(w, "GET", "/v1/models", "Authorization: Bearer sesame2\r\n", "", 401);
    expect_status(w, "GET", "/v1/models", "Authorization: Bearer sesame\r\n", "", 200);
    expect_status(w, "POST", IMAGES, JSON, "{\"prompt\":\"a\"}", 401);
    stop(w);
}

/* Uploads and results go through a folder below TMPDIR, whatever the length of its name, and its name stays the server's. */
static void a_long_tmpdir_serves(void **state)
{
    enum { LONGEST = 1024 - (int)sizeof "/omniq-serve-XXXXXX" };
    world *w = *state;
    char long_dir[2048], command[8192];
    snprintf(long_dir, sizeof long_dir, "%s/", w->dir);
    for (int n = (int)strlen(long_dir); n < LONGEST; n++)
        long_dir[n] = n % 100 == 99 && n + 1 < LONGEST ? '/' : 'd', long_dir[n + 1] = '\0';
    assert_int_equal(strlen(long_dir), LONGEST);
    snprintf(command, sizeof command, "mkdir -p '%s'", long_dir);
    assert_int_equal(system(command), 0);
    setenv("TMPDIR", long_dir, 1);
    start_toybox(w);
    http_answer a = ask_png(w, "{\"prompt\":\"a red ring\"," SMALL ",\"seed\":4}");
    http_answer_free(&a);
    oq_json *json = http_post_json(w->env, &w->server, "/v1/images/edits",
                                   "{\"prompt\":\"a\",\"image\":\"aGVsbG8=\"}", 400);
    const char *message = oq_json_string(oq_json_get(oq_json_get(json, "error"), "message"));
    if (!message || strncmp(message, "image: ", 7) != 0) fail_msg("%s", message);
    oq_json_free(json);
    stop(w);
    snprintf(command, sizeof command, "test -z \"$(ls -A '%s')\"", long_dir);
    assert_int_equal(system(command), 0); /* nothing is left in it */
    snprintf(command, sizeof command,
             "TMPDIR='%sd' " OMNIQ_BINARY_DIR "/omniq serve -q -m " TOYBOX
             " --port 0 2> %s/err; test $? = 2 && "
             "grep -q 'TMPDIR has %d characters, at most %d are taken' %s/err",
             long_dir, w->dir, LONGEST + 1, LONGEST, w->dir);
    assert_int_equal(system(command), 0);
    setenv("TMPDIR", OMNIQ_BINARY_DIR, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, end)
    const struct CMUnitTest tests[] = {
        TEST(pictures_are_the_librarys),
        TEST(json_holds_the_same_files),
        TEST(accept_says_the_type),
        TEST(a_form_brings_a_picture),
        TEST(events_show_the_picture_before_it_is_done),
        TEST(events_end_with_an_error),
        TEST(wrong_requests_get_their_sentence),
        TEST(paths_methods_and_bodies),
        TEST(a_key_is_asked_for),
        TEST(forms_are_read_to_the_byte),
        TEST(a_body_has_one_length),
        TEST(texts_of_forms_are_utf8),
        TEST(a_long_tmpdir_serves),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
