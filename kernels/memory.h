/* How much memory a backend's device has for this process. */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include "kernels/backend.h"

/* The host's RAM, or the limit of this process' control group; on cuda what the device has, other processes' share taken off. Asked anew
   at every call, without what this backend itself has allocated; 0 = unknown. */
int64_t backend_device_bytes(const struct backend *be);
/* RAM, or less where the control group allows less. */
int64_t host_memory_bytes(void);
/* Of the cuda backend: free device memory now. 0 in a build without it. */
int64_t cuda_free_bytes(const struct backend *be);

#endif
