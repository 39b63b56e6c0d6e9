/* Configuration files: a YAML mapping (JSON is a subset) of flag names to scalars or lists of scalars. */
#ifndef MPR_TOOLS_CONFIG_H
#define MPR_TOOLS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Called per entry (per item of a list) with its line; a non-zero return ends the reading and is put into
 * *code. False on a malformed file: problem holds the text, beginning with '!' when the file could not be
 * read at all. */
bool config_read(const char *file, int (*entry)(void *user, const char *key, const char *value, int line), void *user,
                 int *code, char *problem, size_t size);
/* One scalar in YAML: quoted when it is a string that would read back as something else. NULL: null. */
void config_print_scalar(FILE *f, const char *text, bool is_string);

#endif
