/* What lmeval's commands and stage kind share, and what `data list` and `data verify` say about benchmark files. */
#ifndef CLI_LMEVAL_GLUE_H
#define CLI_LMEVAL_GLUE_H

#include "cli/cli.h"
#include "core/fs.h"
#include "core/log.h"
#include "lmeval/lmeval.h"
#include "model/tok_open.h"

/* Where the documents are: `given`, else $DASHLAB_DATA, else the bundled first documents. */
int lmeval_data(const char *given, char dir[1024], bool *bundled, struct err *e);
/*
 * One line (or JSON object) for each file that the five benchmarks need: found where, how many documents, whether its content is the
 * expected one, else where it comes from and what SHA-256 to expect. *wrong counts files whose content differs, *missing those not there.
 */
struct benchmark_count {
    int ok, subset, wrong, missing;
};
int lmeval_sources(const char *dir, bool bundled, bool json, struct str *out, struct benchmark_count *count, struct err *e);

#endif
