/* backend_list.h -- which machines there are, and which one `--device` means. */
#ifndef OQ_ENGINE_BACKEND_LIST_H
#define OQ_ENGINE_BACKEND_LIST_H

#include "backend/backend.h"

/* A backend is either part of the library or a plugin that is opened when asked for. */
typedef struct oq_backend_row {
    const char *name;
    const oq_backend *built_in; /* NULL: plugin "omniq-NAME.so" */
} oq_backend_row;
extern const oq_backend_row oq_backend_list[]; /* ends with name NULL */

/* "auto" (or NULL), "cpu", "cuda", "cuda:N" -> backend and index for its `open`. auto takes the first plugin
 * that has a device, else the CPU, and logs (INFO) which and why. OQ_E_ARG: no such word; OQ_E_UNSUPPORTED:
 * no such machine here, with the reason. */
oq_status oq_backend_select(oq_env *env, const char *device, const oq_backend **backend, int *index);

#endif
