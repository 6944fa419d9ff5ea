/* Question answering over documents (spec section 5): SQuAD 2.0 (qa_1) and HotpotQA (qa_2), in their original layouts. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jread.h"
#include "ruler/gen.h"

int qa_make(struct gen *g, int64_t samples, const char *data_dir, struct str *out, struct err *e)
{
    UNUSED(samples);
    UNUSED(data_dir);
    UNUSED(out);
    return ERR(e, E_USAGE, "task '%s' is not made by this version: its question files may not be bundled", g->task->name);
}
