/* file.h -- the operating system's files: read whole, map, list, write atomically. */
#ifndef OQ_BASE_FILE_H
#define OQ_BASE_FILE_H

#include "base/env.h"

/* Do these bytes, a file's first, say that something else came in its place when it was downloaded: a Git LFS pointer, a web
 * page? The end of a sentence about the file; NULL: no. */
const char *oq_file_stand_in(const void *bytes, size_t n);
/* Whole file, terminated by a NUL that is not counted; more than max_bytes is OQ_E_FORMAT naming both numbers. */
oq_status oq_file_read(oq_env *env, const char *path, size_t max_bytes, char **out, size_t *out_bytes);
/* The same of a kind that people download; OQ_E_FORMAT also where something else stands in for it. */
oq_status oq_file_read_fetched(oq_env *env, const char *path, size_t max_bytes, char **out,
                               size_t *out_bytes);
/* 16 hex digits of the file's size and its bytes: all of a small one's, of a large one's blocks at even distances. */
oq_status oq_file_sample_hash(oq_env *env, const char *path, char out[17]);

/* ---- files as memory (file_map.c) ---------------------------------------------------------------------- */

typedef struct oq_mapping {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
    oq_mapped *file; /* NULL: memory that is no file's */
    oq_env *env;     /* that the file is open in */
} oq_mapping;
oq_status oq_file_map(oq_env *env, const char *path,
                      oq_mapping *out); /* read-only; a directory is an error */
oq_status oq_file_map_fd(oq_env *env, const char *path, int fd, size_t bytes,
                         oq_mapping *out); /* bytes > 0 */
void oq_file_unmap(oq_mapping *mapping);
/* OQ_E_IO, with a sentence in place of any other, where a file that is mapped in `env`, or was and nobody has asked since, was
 * written to in the meantime or lost bytes (oq_env_file_lost): to be asked before anything that came out of it is handed on. A
 * file that was replaced by another of its name is fine. */
oq_status oq_files_check(oq_env *env);
oq_status oq_files_settle(oq_env *env, oq_status st); /* at a verb's end: oq_files_check, else `st` */
void oq_files_forget(oq_env *env);                    /* what was lost and not asked for */
/* Tells the system that [at, at+bytes) will not be read again, so that loading does not fill memory. */
void oq_file_forget(const oq_mapping *mapping, size_t at, size_t bytes);

/* ---- names --------------------------------------------------------------------------------------------- */

bool oq_file_exists(const char *path);
bool oq_file_is_dir(const char *path);
/* There, and neither a file nor a folder: a device, a pipe, a socket. */
bool oq_file_is_special(const char *path);
/* Is `path` the file or folder `outer` or inside it, however both are spelled? A last name that is not there yet counts as
 * inside its folder. */
bool oq_file_within(const char *path, const char *outer);
/* dir + '/' + name; NULL: no memory. The result is the caller's. */
char *oq_path_join(oq_env *env, const char *dir, const char *name);
const char *oq_path_leaf(const char *path);
/* What stands before the leaf, "." for a bare name; NULL: no memory. The result is the caller's. */
char *oq_path_folder(oq_env *env, const char *path);
/* Names in a directory, sorted, without "." and ".."; free each and the array. */
oq_status oq_dir_list(oq_env *env, const char *path, char ***out, size_t *count);
oq_status oq_dir_make(oq_env *env, const char *path); /* with parents; existing is fine */

/* A file that appears whole or not at all: written beside `path` under a temporary name and renamed by finish.
 * abort removes it. "-" is stdout. */
typedef struct oq_file_writer oq_file_writer;
oq_status oq_file_create(oq_env *env, const char *path, oq_file_writer **out);
oq_status oq_file_write(oq_file_writer *writer, const void *bytes, size_t n);
/* Room for `bytes` at once, so that a full disk says so before the work. For oq_file_write_at; not for stdout. */
oq_status oq_file_reserve(oq_file_writer *writer, size_t bytes);
/* At an offset, by any thread. A failure is told by finish. */
bool oq_file_write_at(oq_file_writer *writer, size_t at, const void *bytes, size_t n);
oq_status oq_file_finish(oq_file_writer *writer); /* frees the writer in any case */
void oq_file_abort(oq_file_writer *writer);
oq_status oq_file_write_all(oq_env *env, const char *path, const void *bytes, size_t n);

/* ---- whole folders (file_tree.c) ----------------------------------------------------------------------- */

oq_status oq_file_copy(oq_env *env, const char *from, const char *to);
/* The files of a folder, not those of folders in it. */
oq_status oq_dir_copy_files(oq_env *env, const char *from, const char *to);
/* A folder beside `path` under a temporary name, for contents that appear whole or not at all. The name is the
 * caller's. */
oq_status oq_dir_stage(oq_env *env, const char *path, char **temporary);
/* Renames the staged folder to `path`; what stood there before is removed afterwards. On failure both are as they
 * were. */
oq_status oq_dir_commit(oq_env *env, const char *temporary, const char *path);
void oq_dir_remove(const char *path); /* with everything in it; links are removed, not followed */

#endif
