/* Names and exit codes of the status codes, from the one list in mpr.h. */
#include <mpr.h>

#define STRINGIFY2(x) #x
#define STRINGIFY(x)  STRINGIFY2(x)

const char *mpr_status_text(mpr_status status)
{
    switch (status) {
#define X(name, text, exit_code)                                                                   \
    case name: return text;
        MPR_STATUS_MAP(X)
#undef X
    }
    return "MPR_E_UNKNOWN";
}

int mpr_status_exit_code(mpr_status status)
{
    switch (status) {
#define X(name, text, exit_code)                                                                   \
    case name: return exit_code;
        MPR_STATUS_MAP(X)
#undef X
    }
    return 2;
}

const char *mpr_version(void)
{
    return STRINGIFY(MPR_VERSION_MAJOR) "." STRINGIFY(MPR_VERSION_MINOR) "." STRINGIFY(
        MPR_VERSION_PATCH);
}
