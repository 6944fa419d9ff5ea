/* SHA-256 through libcrypto's EVP interface; digests as 64 lower-case hex digits. */
#ifndef CORE_HASH_H
#define CORE_HASH_H

#include "core/err.h"

struct sha256 {
    void *ctx; /* EVP_MD_CTX */
};
int sha256_init(struct sha256 *s, struct err *e);
void sha256_add(struct sha256 *s, const void *p, size_t n);
void sha256_end(struct sha256 *s, char hex[65]); /* also frees */
int sha256_buf(const void *p, size_t n, char hex[65], struct err *e);
/* Hash of a file; (path, size, mtime_ns, inode) may cache it inside the process. */
int sha256_file(const char *path, char hex[65], struct err *e);

#endif
