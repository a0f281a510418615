/* command.c -- small pieces that several commands use. */
#include "engine/command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

oq_status oq_command_no_arguments(oq_env *env, const oq_options *options, const char *hint)
{
    if (oq_options_n_arguments(options) == 0) return OQ_OK;
    return oq_fail(env, OQ_E_ARG, "%s takes no argument '%s'%s%s", oq_options_command(options),
                   oq_options_argument(options, 0), hint ? "; " : "", hint ? hint : "");
}

oq_status oq_report_finish(oq_env *env, oq_json *json, oq_strbuf *text, bool passed, oq_report **out)
{
    oq_strbuf_puts(text, ""); /* an empty text is a text */
    oq_status st = oq_strbuf_check(text, "report");
    char *taken = st == OQ_OK ? (text->text ? oq_strbuf_take(text) : oq_strdup(env, "")) : NULL;
    oq_strbuf_deinit(text);
    if (st == OQ_OK) return oq_report_new(env, json, taken, passed, out);
    oq_json_free(json);
    return st;
}

oq_status oq_seed_choose(oq_env *env, oq_options *options)
{
    uint32_t seed = 0; /* torch's CPU generator uses the low 32 bits: more would only be longer to type */
    char text[16];
    if (oq_options_given(options, "seed") && oq_options_int(options, "seed", -1) >= 0) return OQ_OK;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return oq_fail(env, OQ_E_IO, "seed: the system gives no random number: %s", strerror(errno));
    snprintf(text, sizeof text, "%" PRIu32, seed);
    return oq_options_set(options, "seed", text);
}

oq_status oq_output_probe(oq_env *env, const char *path)
{
    oq_file_writer *writer = NULL;
    if (strcmp(path, "-") == 0) return OQ_OK;
    if (!*path) return oq_fail(env, OQ_E_ARG, "an output needs a file's name, not ''");
    OQ_TRY(oq_file_create(env, path, &writer));
    oq_file_abort(writer);
    return OQ_OK;
}

void oq_peak_memory_reset(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "5", 1) < 0) { /* the peak then covers the whole process: an upper bound */
    }
    close(fd);
}

size_t oq_peak_memory_bytes(void)
{
    return oq_peak_rss_bytes();
}
