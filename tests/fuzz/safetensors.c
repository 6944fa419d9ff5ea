/*
 * Any bytes as a safetensors file: refused, or every value decodes. Any bytes as an index of shards: refused or a list of plain names. After the word
 * "SHRD": u16 length of an index, u16 length of 1.safetensors, then the index, that file and 2.safetensors, opened as a folder. Seeds: seeds/safetensors.
 */
#include <string.h>

#include "model/st.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct st_file *f)
{
    float buf[256];
    for (size_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = &f->t[i];
        enum st_dtype back;
        if (st_find(f, t->name) != t || t->bytes != (size_t)t->n * st_dtype_bytes(t->dtype))
            abort();
        if (!st_dtype_parse(st_dtype_name(t->dtype), &back) || back != t->dtype)
            abort();
        st_to_f32(t->dtype, t->data, t->n, 0, buf);
        for (int64_t k = 0; k < t->n; k += 256)
            st_to_f32(t->dtype, t->data, k, MIN(256, t->n - k), buf);
    }
    for (size_t i = 0; i < f->n_meta; i++)
        if (!st_meta(f, f->meta[2 * i]))
            abort();
    if (st_meta(f, "\n"))
        (void)st_find(f, "\n");
}

static void folder(const uint8_t *p, size_t n)
{
    char path[1024];
    struct st_shards s;
    struct err e = ERR_INIT;
    if (n < 4)
        return;
    size_t index = p[0] + 256u * p[1], first = p[2] + 256u * p[3], left = n - 4;
    index = index < left ? index : left;
    left -= index;
    first = first < left ? first : left;
    fuzz_put("i.json", p + 4, index);
    fuzz_put("1.safetensors", p + 4 + index, first);
    fuzz_put("2.safetensors", p + 4 + index + first, left - first);
    if (st_shards_open(&s, path_join(path, fuzz_dir, "i.json"), &e) != 0) {
        if (e.code != E_INPUT)
            abort();
        return;
    }
    for (size_t i = 0; i < s.n_file; i++)
        use(&s.file[i]);
    st_shards_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct st_file f;
    struct arena mem;
    const char **files;
    size_t n;
    if (size >= 4 && memcmp(data, "SHRD", 4) == 0) {
        folder(data + 4, size - 4);
        return 0;
    }
    if (st_open_mem(&f, "fuzz", data, size, &e) == 0) {
        use(&f);
        st_close(&f);
    } else if (e.code != E_INPUT) {
        abort();
    }
    arena_init(&mem, 0);
    if (st_index_parse("fuzz", (const char *)data, size, &mem, &files, &n, &e) == 0)
        for (size_t i = 0; i < n; i++)
            if (!*files[i] || strchr(files[i], '/') || (i && strcmp(files[i - 1], files[i]) >= 0))
                abort();
    arena_free(&mem);
    return 0;
}
