/* A folder for targets whose reader takes paths: made at the first input, gone with the process. */
#ifndef TESTS_FUZZ_FOLDER_H
#define TESTS_FUZZ_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/fs.h"

static char fuzz_dir[64];

static void fuzz_dir_remove(void)
{
    struct err ignored = ERR_INIT;
    remove_tree(fuzz_dir, &ignored);
}

/* Writes NAME of the folder, or removes it when p is NULL. */
static inline void fuzz_put(const char *name, const void *p, size_t n)
{
    char path[1024];
    if (!fuzz_dir[0]) {
        /* in memory where there is such a folder: several times the runs */
        snprintf(fuzz_dir, sizeof fuzz_dir, "%s/dashlab-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(fuzz_dir) || atexit(fuzz_dir_remove) != 0)
            abort();
    }
    path_join(path, fuzz_dir, name);
    if (!p) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f) != 0)
        abort();
}

#endif
