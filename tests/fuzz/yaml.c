/* Any bytes as a manifest: no crash, sane positions, and a problem can be reported at every node. */
#include <stdlib.h>
#include <string.h>

#include "core/yamlx.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void walk(const struct ynode *y, struct yproblems *pr, int depth)
{
    if (!y || y->line < 1 || y->col < 1 || depth > 64)
        abort();
    y_problem(pr, y, "node of kind %d", (int)y->kind);
    if (y->kind == Y_SCALAR) {
        if (!y->s)
            abort();
        return;
    }
    for (size_t i = 0; i < y->n; i++) {
        if (y->kind == Y_MAP) {
            walk(y->key[i], pr, depth + 1);
            if (y_get(y, y->key[i]->s) != y->item[i]) /* no key twice */
                abort();
        }
        walk(y->item[i], pr, depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct arena a;
    struct ydoc d;
    struct err e = ERR_INIT;
    arena_init(&a, (size_t)256 << 20);
    if (ydoc_parse(&d, &a, "fuzz.yaml", (const char *)p, n, &e) == 0) {
        struct str out = STR_INIT;
        struct yproblems pr = {.doc = &d, .out = &out};
        walk(d.root, &pr, 0);
        if (y_finish(&pr, &e) != -1 || e.code != E_USAGE)
            abort();
        str_free(&out);
    } else if (e.code == E_OK || e.msg[0] == 0 || d.root)
        abort();
    arena_free(&a);
    return 0;
}
