/* serve.c -- the server's life: what it was told, its model, its queue, its socket; until a signal. */
#include "server.h"
#include "parts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what it was told ---------------------------------------------------------------------------------------- */

static const char *text_of(const oq_options *o, const char *name, const char *fallback)
{
    const char *text = oq_options_get(o, name);
    return text ? text : fallback;
}

static int int_of(const oq_options *o, const char *name, int fallback)
{
    const char *text = oq_options_get(o, name); /* within its row's bounds */
    return text ? (int)strtol(text, NULL, 10) : fallback;
}

static oq_status read_key(server *s, char *message, size_t size)
{
    const char *path = oq_options_get(s->given, "api-key-file"), *variable = getenv("OMNIQ_API_KEY");
    if (!path) {
        if (variable && strlen(variable) >= sizeof s->key)
            return snprintf(message, size, "OMNIQ_API_KEY has more than %zu characters", sizeof s->key - 1),
                   OQ_E_ARG;
        snprintf(s->key, sizeof s->key, "%s", variable ? variable : "");
        s->key[strcspn(s->key, "\r\n")] = '\0';
        return OQ_OK;
    }
    FILE *f = fopen(path, "r");
    if (!f) return snprintf(message, size, "api-key-file %s: %s", path, strerror(errno)), OQ_E_NOTFOUND;
    const bool read = fgets(s->key, sizeof s->key, f) != NULL;
    fclose(f);
    const size_t n = read ? strcspn(s->key, "\r\n") : 0;
    const bool cut = n == sizeof s->key - 1;
    s->key[n] = '\0';
    if (n && !cut) return OQ_OK;
    snprintf(message, size, "api-key-file %s: its first line %s", path, cut ? "is too long" : "is empty");
    return OQ_E_ARG;
}

static void read_name(server *s)
{
    const char *folder = text_of(s->given, "model", ""), *end = folder + strlen(folder);
    while (end > folder + 1 && end[-1] == '/') end--;
    const char *begin = end;
    while (begin > folder && begin[-1] != '/') begin--;
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - begin), begin);
    const char *given = oq_options_get(s->given, "served-model-name");
    if (given) snprintf(s->name, sizeof s->name, "%s", given);
}

static oq_status read_settings(server *s, char *message, size_t size)
{
    s->host = text_of(s->given, "host", "127.0.0.1");
    s->port = int_of(s->given, "port", 8190);
    s->max_body = (size_t)int_of(s->given, "max-body", 64) << 20;
    s->quiet = oq_options_get(s->given, "quiet") != NULL;
    s->verbose = oq_options_get(s->given, "verbose") != NULL;
    s->started = time(NULL);
    read_name(s);
    return read_key(s, message, size);
}

/* ---- its model ----------------------------------------------------------------------------------------------- */

static oq_status open_model(server *s, char *message, size_t size)
{
    oq_options *o = NULL;
    oq_report *plan = NULL;
    oq_status st = oq_options_new(s->env, "generate", &o);
    if (st == OQ_OK) st = oq_options_copy(s->given, o);
    if (st == OQ_OK) st = oq_model_open(s->env, o, &s->model);
    if (st == OQ_OK) st = oq_model_plan(s->env, s->model, &plan);
    if (st == OQ_OK && !(s->plan = strdup(oq_report_json(plan)))) st = OQ_E_NOMEM;
    if (st != OQ_OK) snprintf(message, size, "%s", oq_env_error(s->env));
    oq_report_free(plan);
    oq_options_free(o);
    return st;
}

static oq_status make_folder(server *s, char *message, size_t size)
{
    static const char leaf[] = "/omniq-serve-XXXXXX";
    const char *given = getenv("TMPDIR"), *const root = given && *given ? given : "/tmp";
    if (strlen(root) + sizeof leaf > sizeof s->folder)
        return snprintf(message, size, "TMPDIR has %zu characters, at most %zu are taken", strlen(root),
                        sizeof s->folder - sizeof leaf),
               OQ_E_ARG;
    snprintf(s->folder, sizeof s->folder, "%s%s", root, leaf);
    if (mkdtemp(s->folder)) return OQ_OK;
    snprintf(message, size, "no folder can be made in %s: %s", root, strerror(errno));
    s->folder[0] = '\0';
    return OQ_E_IO;
}

/* In a folder of its own: pictures remember the last part of the name, which is the same for every upload. */
bool upload_begin(server *s, job *j, char *path, size_t size)
{
    pthread_mutex_lock(&s->queue.lock);
    const unsigned long long number = ++s->n_files;
    pthread_mutex_unlock(&s->queue.lock);
    snprintf(path, size, "%s/%llu", s->folder, number);
    if (mkdir(path, 0700) != 0) return false;
    const size_t folder = strlen(path);
    snprintf(path + folder, size - folder, "/upload");
    j->files[j->n_files] = strdup(path);
    if (j->files[j->n_files]) return ++j->n_files;
    path[folder] = '\0';
    rmdir(path); /* nobody else would know of it */
    return false;
}

/* ---- until a signal ------------------------------------------------------------------------------------------ */

/* All that a signal handler may reach: a pipe, and the work of loading. */
static int wake[2];
static oq_env *volatile loading;

static void on_signal(int number)
{
    oq_env_cancel(loading);
    const int before = errno;
    const char c = (char)number;
    const ssize_t n = write(wake[1], &c, 1);
    (void)n;
    errno = before;
}

static oq_status catch_signals(oq_env *env, char *message, size_t size)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    if (pipe(wake) != 0) return snprintf(message, size, "a pipe: %s", strerror(errno)), OQ_E_IO;
    loading = env;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, &action, NULL); /* nohup keeps its word */
    return OQ_OK;
}

static oq_status wait_for_signal(char *message, size_t size)
{
    char c = 0;
    while (read(wake[0], &c, 1) < 0)
        if (errno != EINTR) return snprintf(message, size, "the server's pipe: %s", strerror(errno)), OQ_E_IO;
    return OQ_OK;
}

/* One line, a JSON object with --json. */
static void announce(const server *s, FILE *out)
{
    char url[512];
    const bool six = strchr(s->host, ':') != NULL;
    snprintf(url, sizeof url, "http://%s%s%s:%d", six ? "[" : "", s->host, six ? "]" : "", s->port);
    json_t *json = json_pack("{s:s,s:s,s:b}", "url", url, "model", s->name, "key", *s->key != '\0');
    if (oq_options_get(s->given, "json"))
        json_dumpf(json, out, JSON_COMPACT), fputc('\n', out);
    else
        fprintf(out, "serving '%s' at %s%s\n", s->name, url, *s->key ? ", with a key" : "");
    json_decref(json);
    fflush(out);
}

static oq_status serve(server *s, FILE *out, char *message, size_t size)
{
    const int threads = int_of(s->given, "threads", 0);
    oq_status st = read_settings(s, message, size);
    if (st == OQ_OK) st = catch_signals(s->env, message, size); /* none is lost from here on */
    if (st == OQ_OK && !http_can_start(s, message, size)) st = OQ_E_IO;
    if (st == OQ_OK) st = open_model(s, message, size);
    if (st == OQ_OK) st = make_folder(s, message, size);
    if (st != OQ_OK) return st;
    st = queue_start(&s->queue, s->model, s->folder, threads, int_of(s->given, "queue-limit", 32),
                     int_of(s->given, "keep-results", 16));
    if (st != OQ_OK)
        return snprintf(message, size, "the queue cannot be started: %s", oq_status_text(st)), st;
    struct MHD_Daemon *daemon = http_start(s, message, size);
    if (!daemon) return OQ_E_IO;
    announce(s, out);
    st = wait_for_signal(message, size);
    queue_stop(&s->queue); /* first: whoever waits gets an answer */
    http_stop(s, daemon);
    return st;
}

oq_status server_run(oq_env *env, const oq_options *options, FILE *out, char *message, size_t size)
{
    server *s = calloc(1, sizeof *s);
    if (!s) return snprintf(message, size, "the server: no memory"), OQ_E_NOMEM;
    s->env = env;
    s->given = options;
    const oq_status st = serve(s, out, message, size);
    queue_stop(&s->queue);
    loading = NULL;
    if (s->folder[0]) rmdir(s->folder);
    oq_model_close(s->model);
    free(s->plan);
    free(s);
    return st;
}
