/* What lmeval's commands and stage kind share. */
#ifndef CLI_LMEVAL_GLUE_H
#define CLI_LMEVAL_GLUE_H

#include "cli/cli.h"
#include "core/fs.h"
#include "core/log.h"
#include "lmeval/lmeval.h"
#include "model/tok_open.h"

/* Where the documents are: `given`, else $DASHLAB_DATA, else the bundled first documents. */
int lmeval_data(const char *given, char dir[1024], bool *bundled, struct err *e);

#endif
