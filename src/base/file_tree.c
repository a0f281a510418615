/* file_tree.c -- folders as one thing: staged under a temporary name, put in place by a rename, removed whole. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

oq_status oq_file_copy(oq_env *env, const char *from, const char *to)
{
    oq_mapping map;
    OQ_TRY(oq_file_map(env, from, &map));
    oq_file_writer *w = NULL;
    oq_status st = oq_file_create(env, to, &w);
    if (st == OQ_OK) {
        oq_file_write(w, map.data ? (const void *)map.data : "", map.bytes);
        st = oq_files_check(env);
        if (st == OQ_OK)
            st = oq_file_finish(w);
        else
            oq_file_abort(w);
    }
    oq_file_unmap(&map);
    return st;
}

oq_status oq_dir_copy_files(oq_env *env, const char *from, const char *to)
{
    char **names = NULL;
    size_t n = 0;
    OQ_TRY(oq_dir_list(env, from, &names, &n));
    oq_status st = oq_dir_make(env, to);
    for (size_t i = 0; i < n; i++) {
        char *a = oq_path_join(env, from, names[i]), *b = oq_path_join(env, to, names[i]);
        if (st == OQ_OK && (!a || !b)) st = oq_fail(env, OQ_E_NOMEM, "%s: no memory", from);
        if (st == OQ_OK && !oq_file_is_dir(a)) st = oq_file_copy(env, a, b);
        oq_free(env, b);
        oq_free(env, a);
        oq_free(env, names[i]);
    }
    oq_free(env, names);
    return st;
}

oq_status oq_dir_stage(oq_env *env, const char *path, char **temporary)
{
    static atomic_uint counter;
    char *parent = oq_path_folder(env, path);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    *temporary = oq_alloc(env, n + 32);
    oq_status st = parent && *temporary ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (st == OQ_OK) st = oq_dir_make(env, parent);
    if (st == OQ_OK) {
        int made; /* by mkdir, whose rights follow the umask as mkdtemp's do not */
        do {
            snprintf(*temporary, n + 32, "%.*s.part-%ld-%u", (int)n, path, (long)getpid(),
                     atomic_fetch_add(&counter, 1) % 1000000);
            made = mkdir(*temporary, 0777);
        } while (made != 0 && errno == EEXIST);
        if (made != 0) st = oq_fail(env, OQ_E_IO, "%s: folder cannot be made: %s", path, strerror(errno));
    }
    oq_free(env, parent);
    if (st == OQ_OK) return OQ_OK;
    oq_free(env, *temporary);
    *temporary = NULL;
    return st;
}

oq_status oq_dir_commit(oq_env *env, const char *temporary, const char *path)
{
    char *aside = NULL;
    if (oq_file_is_dir(
            path)) { /* the old one steps aside; it comes back if the new one cannot take its place */
        OQ_TRY(oq_dir_stage(env, path, &aside));
        if (rename(path, aside) != 0) {
            const int wrong = errno;
            rmdir(aside);
            oq_free(env, aside);
            return oq_fail(env, OQ_E_IO, "%s: cannot be replaced: %s", path, strerror(wrong));
        }
    }
    if (rename(temporary, path) == 0) {
        if (aside) oq_dir_remove(aside);
        oq_free(env, aside);
        return OQ_OK;
    }
    const int wrong = errno;
    if (aside && rename(aside, path) != 0)
        oq_log(env, OQ_LOG_WARN, "%s: what stood there is in '%s' now", path, aside);
    oq_free(env, aside);
    return oq_fail(env, OQ_E_IO, "%s: cannot be written: %s", path, strerror(wrong));
}

void oq_dir_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) return;
    if (!S_ISDIR(st.st_mode)) {
        unlink(path);
        return;
    }
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char below[4096];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        const int n = snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (n > 0 && (size_t)n < sizeof below) oq_dir_remove(below);
    }
    if (dir) closedir(dir);
    rmdir(path);
}
