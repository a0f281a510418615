/* test_file_map.c -- files that change while they are mapped: told before anything that came out of them is handed on; one that is
 * cut under its reader raises no signal that ends the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "support/scratch.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 5 << 20 };

static oq_env *volatile target;
static volatile sig_atomic_t n_caught, n_foreign;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    n_caught++;
    if (!oq_env_file_lost(target, info->si_addr)) n_foreign++;
}

/* Within the test: cmocka has handlers of its own, before and behind it. */
static void catch_bus_errors(oq_env *env)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
    target = env;
    n_caught = n_foreign = 0;
}

typedef struct world {
    oq_env *env;
    char path[1100];
    oq_mapping map;
} world;

static int setup(void **state)
{
    static world w;
    static uint8_t bytes[BYTES];
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "file_map");
    memset(bytes, 7, sizeof bytes);
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    scratch_write(dir, "w", bytes, sizeof bytes);
    snprintf(w.path, sizeof w.path, "%s/w", dir);
    if (oq_file_map(w.env, w.path, &w.map) != OQ_OK) return -1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    oq_file_unmap(&w->map);
    oq_env_free(w->env);
    return 0;
}

static void expect(world *w, const char *words)
{
    const oq_status st = oq_files_check(w->env);
    if (!words) {
        assert_int_equal(st, OQ_OK);
        return;
    }
    assert_int_equal(st, OQ_E_IO);
    if (!strstr(oq_env_error(w->env), words) || !strstr(oq_env_error(w->env), w->path))
        fail_msg("%s", oq_env_error(w->env));
    oq_env_clear(w->env);
}

static void overwrite(const char *path, size_t at, time_t second)
{
    const int fd = open(path, O_WRONLY);
    const struct timespec times[2] = {{second, 0}, {second, 0}};
    assert_true(fd >= 0 && pwrite(fd, "x", 1, (off_t)at) == 1 && futimens(fd, times) == 0);
    close(fd);
}

static void what_is_left_alone_is_fine(void **state)
{
    world *w = *state;
    expect(w, NULL);
    oq_file_forget(&w->map, 0, w->map.bytes);
    assert_int_equal(w->map.data[BYTES - 1], 7);
    expect(w, NULL);
}

/* The mapping keeps the file that it has. */
static void another_file_of_the_name_is_fine(void **state)
{
    world *w = *state;
    assert_int_equal(oq_file_write_all(w->env, w->path, "new", 3), OQ_OK);
    expect(w, NULL);
    assert_int_equal(unlink(w->path), 0);
    expect(w, NULL);
    assert_int_equal(w->map.data[BYTES - 1], 7);
}

static void what_is_written_to_is_told(void **state)
{
    world *w = *state;
    overwrite(w->path, 100, 1000000);
    expect(w, "was written to while it was read");
    expect(w, NULL); /* once */
}

static void what_grows_is_told(void **state)
{
    world *w = *state;
    overwrite(w->path, BYTES, 1000000);
    expect(w, "had 5242880 bytes when it was opened and has 5242881 now");
}

static void what_grew_before_it_was_mapped_is_told(void **state)
{
    world *w = *state;
    oq_mapping map;
    const int fd = open(w->path, O_RDONLY);
    assert_int_equal(oq_file_map_fd(w->env, w->path, fd, BYTES - 1, &map), OQ_OK);
    close(fd);
    expect(w, "had 5242879 bytes when it was opened and has 5242880 now");
    oq_file_unmap(&map);
}

/* Before the end of a verb, though its file is closed. */
static void what_was_closed_is_told(void **state)
{
    world *w = *state;
    overwrite(w->path, 100, 1000000);
    oq_fail(w->env, OQ_E_FORMAT, "whatever it led to");
    oq_file_unmap(&w->map);
    assert_int_equal(oq_files_settle(w->env, OQ_E_FORMAT), OQ_E_IO);
    assert_non_null(strstr(oq_env_error(w->env), "was written to while it was read"));
    assert_int_equal(oq_files_settle(w->env, OQ_E_FORMAT), OQ_E_FORMAT);
    oq_env_clear(w->env);
}

static void what_is_cut_is_read_as_zeros_and_told(void **state)
{
    world *w = *state;
    const size_t kept = 3 << 20;
    oq_mapping other;
    assert_int_equal(oq_file_map(w->env, OMNIQ_SOURCE_DIR "/LICENSE", &other), OQ_OK);
    const uint8_t first = other.data[0];
    catch_bus_errors(w->env);
    assert_int_equal(truncate(w->path, (off_t)kept), 0);
    unsigned sum = 0;
    for (size_t i = 0; i < BYTES; i++) sum += w->map.data[i];
    assert_int_equal(sum, 7 * kept);
    assert_int_equal(n_caught, 1);
    assert_int_equal(n_foreign, 0);
    assert_int_equal(other.data[0], first);
    expect(w, "had 5242880 bytes when it was opened and has 3145728 now");
    oq_file_unmap(&other);
}

/* Cut, read, and as long as before when somebody asks. */
static void what_was_cut_for_a_while_is_told(void **state)
{
    world *w = *state;
    struct stat st;
    assert_int_equal(stat(w->path, &st), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    catch_bus_errors(w->env);
    assert_int_equal(truncate(w->path, 0), 0);
    assert_int_equal(w->map.data[BYTES - 1], 0);
    assert_int_equal(truncate(w->path, BYTES), 0);
    assert_int_equal(utimensat(AT_FDCWD, w->path, times, 0), 0);
    assert_int_equal(n_caught, 1);
    expect(w, "bytes of it could not be read");
}

static void other_addresses_are_not_ours(void **state)
{
    world *w = *state;
    assert_false(oq_env_file_lost(w->env, NULL));
    assert_false(oq_env_file_lost(w->env, w));
    assert_false(oq_env_file_lost(NULL, w->map.data));
    assert_false(oq_env_file_lost(w->env, w->map.data + BYTES + 65536));
    expect(w, NULL);
    const uint8_t *const at = w->map.data;
    oq_file_unmap(&w->map);
    assert_false(oq_env_file_lost(w->env, at));
}

/* A copy of a file that changed in the meantime is none. */
static void a_copy_is_whole_or_not_there(void **state)
{
    world *w = *state;
    char to[1200];
    snprintf(to, sizeof to, "%s.copy", w->path);
    assert_int_equal(oq_file_copy(w->env, w->path, to), OQ_OK);
    overwrite(w->path, 100, 1000000);
    oq_env_clear(w->env);
    char again[1200];
    snprintf(again, sizeof again, "%s.again", w->path);
    assert_int_equal(oq_file_copy(w->env, w->path, again), OQ_E_IO);
    assert_false(oq_file_exists(again));
    oq_env_clear(w->env);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_left_alone_is_fine),
        TEST(another_file_of_the_name_is_fine),
        TEST(what_is_written_to_is_told),
        TEST(what_grows_is_told),
        TEST(what_grew_before_it_was_mapped_is_told),
        TEST(what_was_closed_is_told),
        TEST(what_is_cut_is_read_as_zeros_and_told),
        TEST(what_was_cut_for_a_while_is_told),
        TEST(other_addresses_are_not_ours),
        TEST(a_copy_is_whole_or_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
