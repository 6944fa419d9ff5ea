/* Files. Writing goes to `PATH.tmp-PID` in the same folder, is flushed, fsynced and renamed: nothing half-written has its final name. */
#ifndef CORE_FS_H
#define CORE_FS_H

#include <stdio.h>

#include "core/err.h"
#include "core/str.h"

/* Read-only view of a file (mmap; a copy where that fails). len 0 gives p != NULL. */
struct file_map {
    const uint8_t *p;
    size_t len;
    bool mapped;
};
int map_open(struct file_map *m, const char *path, struct err *e);
void map_close(struct file_map *m);

/* The whole file into s (appended). max_bytes 0 = no limit. */
int file_read(const char *path, size_t max_bytes, struct str *s, struct err *e);

/* Atomic writer. Every call after a failure is a no-op; commit reports it and removes the temporary file. */
struct file_out {
    FILE *f;
    char path[1024], tmp[1100];
    int saved_errno;
};
int out_open(struct file_out *o, const char *path, struct err *e);
void out_write(struct file_out *o, const void *p, size_t n);
void out_printf(struct file_out *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
int out_commit(struct file_out *o, struct err *e);
void out_abort(struct file_out *o);
/* Convenience: whole content at once. */
int file_write(const char *path, const void *p, size_t n, struct err *e);

/* Append one line (n bytes, ending in \n) to path with one write() and, if sync, fsync. Creates the file. */
int file_append(const char *path, const char *line, size_t n, bool sync, struct err *e);

int mkdir_p(const char *path, struct err *e);
bool file_exists(const char *path);
bool dir_exists(const char *path);
int64_t file_size(const char *path); /* -1 when there is none */
int remove_tree(const char *path, struct err *e);
/* Removes what killed writers left in a folder (and, if deep, below it): files NAME.tmp-PID whose process is gone; all: whoever it
 * belongs to. */
void tmp_sweep(const char *path, bool deep, bool all);
/* Sorted names (no . and ..) of a folder; free with names_free. */
struct names {
    char **v;
    size_t n;
};
int dir_list(const char *path, struct names *out, struct err *e);
void names_free(struct names *n);
/* dst = a "/" b; truncation is BUG. */
char *path_join(char dst[1024], const char *a, const char *b);
const char *path_base(const char *path);

/*
 * Advisory lock: PATH is created with O_EXCL and holds "pid host boot-id time". A lock whose process is gone (same host and boot) is taken over with a
 * log line; a zombie is gone. A held one is E_ENV, naming owner and age. lock_take waits up to a second for an owner on this host, which may have been
 * killed a moment ago; lock_try does not.
 */
int lock_take(const char *path, struct err *e);
int lock_try(const char *path, struct err *e);
void lock_drop(const char *path);

#endif
