/* scratch.c -- a test's own files. */
#include "support/scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = 8, PATH_BYTES = 1024 };

static void die(const char *what, const char *path)
{
    perror(path);
    fprintf(stderr, "scratch: cannot %s %s\n", what, path);
    abort();
}

static char *next_slot(void)
{
    static char slots[SLOTS][PATH_BYTES];
    static int at;
    return slots[at++ % SLOTS];
}

const char *scratch_path(const char *dir, const char *name)
{
    char *path = next_slot();
    if (snprintf(path, PATH_BYTES, "%s/%s", dir, name) >= PATH_BYTES) die("name", name);
    return path;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st, (void)type;
    return walk->level ? remove(path) : 0;
}

const char *scratch_dir(const char *root, const char *name)
{
    char *path = next_slot();
    if (snprintf(path, PATH_BYTES, "%s/scratch-%s", root, name) >= PATH_BYTES) die("name", name);
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir(path, 0777) != 0 && access(path, W_OK) != 0) die("make", path);
    return path;
}

void scratch_subdir(const char *dir, const char *name)
{
    const char *path = scratch_path(dir, name);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) die("make", path); /* it may be there */
}

void scratch_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    const char *path = scratch_path(dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(bytes, 1, n, f) != n) || fclose(f) != 0) die("write", path);
}

void scratch_text(const char *dir, const char *name, const char *text)
{
    scratch_write(dir, name, text, strlen(text));
}

void scratch_safetensors(const char *dir, const char *name, const char *header, const void *data, size_t n)
{
    const char *path = scratch_path(dir, name);
    const size_t length = strlen(header);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(prefix, 1, 8, f) != 8 || fwrite(header, 1, length, f) != length ||
        (n && fwrite(data, 1, n, f) != n) || fclose(f) != 0)
        die("write", path);
}

void scratch_remove(const char *dir, const char *name)
{
    const char *path = scratch_path(dir, name);
    if (remove(path) != 0) die("remove", path);
}
