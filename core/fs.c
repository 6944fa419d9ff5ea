#include "core/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_CHUNK = 1 << 16, MAX_TREE_DEPTH = 64 };

/* ---- reading ---- */

/* The rest of fd into s; the caller closes fd. */
static int read_fd(int fd, const char *path, size_t max_bytes, struct str *s, struct err *e)
{
    size_t got = 0;
    char *buf = malloc(READ_CHUNK);
    if (!buf)
        return err_nomem(e, READ_CHUNK, "a read buffer");
    int rc = 0;
    for (;;) {
        ssize_t n = read(fd, buf, READ_CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = err_sys(e, "read", path);
        if (n <= 0)
            break;
        got += (size_t)n;
        if (max_bytes && got > max_bytes) {
            rc = ERR(e, E_INPUT, "'%s' is larger than the limit of %zu bytes", path, max_bytes);
            break;
        }
        str_add(s, buf, (size_t)n);
        if (str_ok(s, path, e) != 0) {
            rc = -1;
            break;
        }
    }
    free(buf);
    return rc;
}

/* Opens for reading and refuses folders, which open() itself would let through. */
static int open_read(const char *path, struct stat *st, int *fd, struct err *e)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return err_sys(e, "open", path);
    int rc = 0;
    if (fstat(*fd, st) != 0)
        rc = err_sys(e, "stat", path);
    else if (S_ISDIR(st->st_mode)) {
        errno = EISDIR;
        rc = err_sys(e, "read", path);
    }
    if (rc != 0)
        close(*fd);
    return rc;
}

int map_open(struct file_map *m, const char *path, struct err *e)
{
    struct stat st;
    int fd;
    *m = (struct file_map){0};
    TRY(open_read(path, &st, &fd, e));
    if (S_ISREG(st.st_mode) && st.st_size > 0 && (uintmax_t)st.st_size <= SIZE_MAX) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p != MAP_FAILED) {
            close(fd);
            *m = (struct file_map){p, (size_t)st.st_size, true};
            return 0;
        }
    }
    /* Empty files, pipes, /proc, file systems without mmap: a copy. */
    struct str s = STR_INIT;
    int rc = read_fd(fd, path, 0, &s, e);
    close(fd);
    if (rc == 0 && !s.p) {
        str_add(&s, "", 0);
        rc = str_ok(&s, path, e);
    }
    if (rc != 0) {
        str_free(&s);
        return -1;
    }
    *m = (struct file_map){(const uint8_t *)s.p, s.len, false};
    return 0;
}

void map_close(struct file_map *m)
{
    if (m->mapped)
        munmap((void *)(uintptr_t)m->p, m->len);
    else
        free((void *)(uintptr_t)m->p);
    *m = (struct file_map){0};
}

int file_read(const char *path, size_t max_bytes, struct str *s, struct err *e)
{
    struct stat st;
    int fd, rc;
    TRY(open_read(path, &st, &fd, e));
    if (max_bytes && S_ISREG(st.st_mode) && st.st_size > 0 && (uintmax_t)st.st_size > max_bytes)
        rc = ERR(e, E_INPUT, "'%s' has %jd bytes, the limit is %zu", path, (intmax_t)st.st_size, max_bytes);
    else
        rc = read_fd(fd, path, max_bytes, s, e);
    close(fd);
    return rc;
}

/* ---- writing ---- */

/* Makes the rename in the folder of path durable. File systems that cannot sync a folder say EINVAL: nothing more can be done there. */
static int sync_folder(const char *path, struct err *e)
{
    char dir[1024];
    const char *slash = strrchr(path, '/');
    if (!slash)
        memcpy(dir, ".", 2);
    else
        snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(dir, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : err_sys(e, "open folder", dir);
    int rc = fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP ? err_sys(e, "sync folder", dir) : 0;
    close(fd);
    return rc;
}

int out_open(struct file_out *o, const char *path, struct err *e)
{
    *o = (struct file_out){0};
    int n = snprintf(o->path, sizeof o->path, "%s", path);
    if (n < 0 || (size_t)n >= sizeof o->path)
        return ERR(e, E_USAGE, "cannot create '%.100s...': the path has %d bytes, the limit is %zu", path, n, sizeof o->path - 1);
    /* A rename would replace a device or a pipe by a plain file; nobody who writes to /dev/stdout means that. */
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return ERR(e, E_USAGE, "cannot write '%s': it is %s; name a plain file", path,
                   S_ISDIR(st.st_mode) ? "a folder" : "a device or a pipe");
    snprintf(o->tmp, sizeof o->tmp, "%s.tmp-%ld", path, (long)getpid());
    /* A file left there by a killed process with the same number is ours to replace; never write through a link. */
    int fd = open(o->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return err_sys(e, "create", o->tmp);
    o->f = fdopen(fd, "wb");
    if (!o->f) {
        err_sys(e, "create", o->tmp);
        close(fd);
        unlink(o->tmp);
        return -1;
    }
    return 0;
}

static void note_errno(struct file_out *o)
{
    if (!o->saved_errno)
        o->saved_errno = errno ? errno : EIO;
}

void out_write(struct file_out *o, const void *p, size_t n)
{
    if (o->saved_errno || n == 0)
        return;
    errno = 0;
    if (!o->f || fwrite(p, 1, n, o->f) != n)
        note_errno(o);
}

void out_printf(struct file_out *o, const char *fmt, ...)
{
    if (o->saved_errno)
        return;
    va_list ap;
    va_start(ap, fmt);
    errno = 0;
    if (!o->f || vfprintf(o->f, fmt, ap) < 0)
        note_errno(o);
    va_end(ap);
}

int out_commit(struct file_out *o, struct err *e)
{
    errno = 0;
    if (!o->f)
        note_errno(o);
    if (!o->saved_errno && (fflush(o->f) != 0 || ferror(o->f)))
        note_errno(o);
    if (!o->saved_errno && fsync(fileno(o->f)) != 0)
        note_errno(o);
    if (o->f && fclose(o->f) != 0)
        note_errno(o);
    o->f = NULL;
    if (!o->saved_errno && rename(o->tmp, o->path) != 0)
        note_errno(o);
    if (o->saved_errno) {
        if (o->tmp[0])
            unlink(o->tmp);
        errno = o->saved_errno;
        return err_sys(e, "write", o->path);
    }
    return sync_folder(o->path, e);
}

void out_abort(struct file_out *o)
{
    if (o->f) {
        fclose(o->f);
        unlink(o->tmp);
    }
    *o = (struct file_out){0};
}

int file_write(const char *path, const void *p, size_t n, struct err *e)
{
    struct file_out o;
    TRY(out_open(&o, path, e));
    out_write(&o, p, n);
    return out_commit(&o, e);
}

int file_append(const char *path, const char *line, size_t n, bool sync, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), rc = 0;
    if (fd < 0)
        return err_sys(e, "open for appending", path);
    off_t before = lseek(fd, 0, SEEK_END);
    ssize_t w;
    do
        w = write(fd, line, n);
    while (w < 0 && errno == EINTR);
    if (w < 0)
        rc = err_sys(e, "append to", path);
    else if ((size_t)w != n) {
        /* Half a line would make the file unreadable: take it back. */
        bool back = before >= 0 && ftruncate(fd, before) == 0;
        rc = ERR(e, E_ENV, "cannot append to '%s': %zd of %zu bytes written%s; is the disk full?", path, w, n,
                 back ? " and taken back" : "");
    } else if (sync && fsync(fd) != 0)
        rc = err_sys(e, "sync", path);
    if (close(fd) != 0 && rc == 0)
        rc = err_sys(e, "close", path);
    return rc;
}

/* ---- folders ---- */

int mkdir_p(const char *path, struct err *e)
{
    char p[1024];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof p)
        return ERR(e, E_USAGE, "cannot create folder '%.100s': its path has %zu bytes, allowed are 1 to %zu", path, n, sizeof p - 1);
    memcpy(p, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (p[i] != '/' && p[i] != 0)
            continue;
        char c = p[i];
        p[i] = 0;
        if (mkdir(p, 0777) != 0 && !dir_exists(p)) {
            if (errno == EEXIST)
                errno = ENOTDIR;
            return err_sys(e, "create folder", p);
        }
        p[i] = c;
    }
    return 0;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool dir_exists(const char *path)
{
    int keep = errno;
    struct stat st;
    bool yes = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    errno = keep;
    return yes;
}

int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0));
}

/* Removes what is in the folder `name` of dirfd, then the folder. Works on descriptors: a link swapped in meanwhile is not followed. */
static int remove_at(int dirfd, const char *name, const char *shown, int depth, struct err *e)
{
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, "remove", shown);
    if (depth > MAX_TREE_DEPTH)
        return ERR(e, E_ENV, "cannot remove '%s': more than %d folders deep", shown, MAX_TREE_DEPTH);
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, "remove", shown);
    DIR *d = fdopendir(fd);
    if (!d) {
        err_sys(e, "read folder", shown);
        close(fd);
        return -1;
    }
    int rc = 0;
    struct dirent *ent;
    while (rc == 0 && (ent = readdir(d)) != NULL) {
        char sub[1024];
        if (is_dots(ent->d_name))
            continue;
        int n = snprintf(sub, sizeof sub, "%s/%s", shown, ent->d_name);
        rc = remove_at(fd, ent->d_name, n < (int)sizeof sub ? sub : ent->d_name, depth + 1, e);
    }
    closedir(d);
    if (rc == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        rc = err_sys(e, "remove folder", shown);
    return rc;
}

int remove_tree(const char *path, struct err *e)
{
    return remove_at(AT_FDCWD, path, path, 0, e);
}

void tmp_sweep(const char *path, bool deep, bool all)
{
    struct names names;
    struct err ignored = ERR_INIT;
    if (dir_list(path, &names, &ignored) != 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        char sub[1024];
        const char *tag = NULL; /* the last: a temporary file may be that of another one */
        int64_t pid;
        for (const char *p = names.v[i]; (p = strstr(p, ".tmp-")) != NULL; p++)
            tag = p;
        if (strlen(path) + strlen(names.v[i]) + 2 > sizeof sub)
            continue;
        path_join(sub, path, names.v[i]);
        if (deep && dir_exists(sub))
            tmp_sweep(sub, deep, all);
        else if (tag && parse_i64(tag + 5, &pid) && pid > 0 && (all || (kill((pid_t)pid, 0) != 0 && errno == ESRCH)))
            unlink(sub);
    }
    names_free(&names);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int dir_list(const char *path, struct names *out, struct err *e)
{
    *out = (struct names){0};
    DIR *d = opendir(path);
    if (!d)
        return err_sys(e, "read folder", path);
    size_t cap = 0;
    int rc = 0;
    for (;;) {
        errno = 0;
        struct dirent *ent = readdir(d);
        if (!ent) {
            if (errno)
                rc = err_sys(e, "read folder", path);
            break;
        }
        if (is_dots(ent->d_name))
            continue;
        if (out->n == cap) {
            size_t more = cap ? cap * 2 : 16;
            char **v = realloc(out->v, more * sizeof *v);
            if (!v) {
                rc = err_nomem(e, more * sizeof *v, "a list of file names");
                break;
            }
            out->v = v;
            cap = more;
        }
        out->v[out->n] = strdup(ent->d_name);
        if (!out->v[out->n]) {
            rc = err_nomem(e, strlen(ent->d_name) + 1, "a file name");
            break;
        }
        out->n++;
    }
    closedir(d);
    if (rc != 0)
        names_free(out);
    else if (out->n)
        qsort(out->v, out->n, sizeof *out->v, by_name);
    return rc;
}

void names_free(struct names *n)
{
    for (size_t i = 0; i < n->n; i++)
        free(n->v[i]);
    free(n->v);
    *n = (struct names){0};
}

char *path_join(char dst[1024], const char *a, const char *b)
{
    char p[1024]; /* dst may be a or b */
    size_t na = strlen(a);
    int n = snprintf(p, sizeof p, "%s%s%s", a, na == 0 || a[na - 1] == '/' ? "" : "/", b);
    if (n < 0 || (size_t)n >= sizeof p)
        BUG("path_join: '%.60s...' and '%.60s' make more than %zu bytes", a, b, sizeof p - 1);
    memcpy(dst, p, (size_t)n + 1);
    return dst;
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
