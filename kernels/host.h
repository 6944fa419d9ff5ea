/* Memory of backends whose device is the host: the table entries alloc, free, copy, zero and sync of ref and cpu. */
#ifndef KERNELS_HOST_H
#define KERNELS_HOST_H

#include "kernels/backend.h"

int host_alloc(struct backend *be, size_t bytes, void **p, struct err *e); /* zeroed, 64-byte aligned */
void host_free(struct backend *be, void *p);
void host_copy(struct backend *be, void *dst, const void *src, size_t bytes, enum copy_kind kind);
void host_zero(struct backend *be, void *p, size_t bytes);
int host_sync(struct backend *be, struct err *e);
/* Whether views of this backend may be read by the host. */
bool be_is_host(const struct backend *be);

#endif
