#include "cli/lmeval_glue.h"

#include <stdio.h>
#include <stdlib.h>

int lmeval_data(const char *given, char dir[1024], bool *bundled, struct err *e)
{
    const char *env = getenv("DASHLAB_DATA");
    const char *root = given ? given : env && *env ? env : NULL;
    *bundled = !root;
    if (!root)
        return cli_bundled(dir, "lmeval/data", e);
    snprintf(dir, 1024, "%s", root);
    return dir_exists(dir) ? 0 : ERR(e, E_INPUT, "'%s'%s is no folder", root, given ? "" : " (from $DASHLAB_DATA)");
}
