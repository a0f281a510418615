/* st_writer.c -- header in the order given, data right behind it. */
#include "support/st_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t tensor_bytes(const st_tensor *t)
{
    size_t n = t->dtype->bytes;
    for (int i = 0; i < t->n_dims; i++) n *= (size_t)t->dim[i];
    return n;
}

static size_t put_entry(char *to, size_t room, const st_tensor *t, size_t at, const char *separator)
{
    size_t n = (size_t)snprintf(to, room, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", separator, t->name,
                                t->dtype->name);
    for (int i = 0; i < t->n_dims; i++)
        n += (size_t)snprintf(to + n, room - n, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    return n + (size_t)snprintf(to + n, room - n, "],\"data_offsets\":[%zu,%zu]}", at, at + tensor_bytes(t));
}

void st_write(const char *path, const st_tensor *tensors, size_t n)
{
    const size_t room = 256 + n * 512;
    char *header = calloc(1, room);
    FILE *f = fopen(path, "wb");
    if (!header || !f) abort();
    size_t used = 1, at = 0;
    header[0] = '{';
    for (size_t i = 0; i < n; i++) {
        used += put_entry(header + used, room - used, &tensors[i], at, i ? "," : "");
        at += tensor_bytes(&tensors[i]);
    }
    header[used++] = '}';
    while (used % 8) header[used++] = ' ';
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(used >> (8 * i));
    if (fwrite(length, 1, 8, f) != 8 || fwrite(header, 1, used, f) != used) abort();
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = tensor_bytes(&tensors[i]);
        if (bytes && fwrite(tensors[i].data, 1, bytes, f) != bytes) abort();
    }
    if (fclose(f) != 0) abort();
    free(header);
}
