/* Any bytes as a safetensors file: refused, or every value decodes. Seeds: seeds/safetensors. */
#include <stdlib.h>

#include "model/st.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct st_file f;
    struct arena mem;
    const char **files;
    size_t n;
    float buf[256];
    if (st_open_mem(&f, "fuzz", data, size, &e) == 0) {
        for (size_t i = 0; i < f.n; i++) {
            if (st_find(&f, f.t[i].name) != &f.t[i])
                abort();
            for (int64_t k = 0; k < f.t[i].n; k += 256)
                st_to_f32(f.t[i].dtype, f.t[i].data, k, MIN(256, f.t[i].n - k), buf);
        }
        st_close(&f);
    } else if (e.code != E_INPUT) {
        abort();
    }
    arena_init(&mem, 0);
    st_index_parse("fuzz", (const char *)data, size, &mem, &files, &n, &e);
    arena_free(&mem);
    return 0;
}
