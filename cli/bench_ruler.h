/* `dashlab bench ruler`. */
#ifndef CLI_BENCH_RULER_H
#define CLI_BENCH_RULER_H

#include "core/err.h"

int bench_cmd_ruler(int argc, char **argv, struct err *e);

#endif
