/* sha256.h -- the hash in which reference files give whole matrices. */
#ifndef OQ_TESTS_SHA256_H
#define OQ_TESTS_SHA256_H

#include <stddef.h>

/* 64 hex digits and a terminator. */
void sha256_hex(const void *bytes, size_t n, char out[65]);

#endif
