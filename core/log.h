/* Messages for people, on stderr. The level is one of the two globals of the program (the pool is the other). Thread-safe. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include "core/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
void log_set_level(enum log_level l);
enum log_level log_get_level(void);
/* Clears a live progress line first. */
void log_msg(enum log_level l, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_warn(...) log_msg(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_msg(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)
/* Warns once for each key. */
void log_warn_once(const char *key, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Also append every line to this file (a run's log.txt); NULL ends it. */
void log_tee(const char *path);

#endif
