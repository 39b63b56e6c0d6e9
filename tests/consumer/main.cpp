// The header in C++: every public struct and a call, compiled with all warnings.
#include <mpr.h>
#include <cstdio>

int main()
{
    mpr_session_options options{};
    options.size = sizeof options;
    options.autocast = MPR_FLOAT16;
    options.loss = "cross-entropy";
    mpr_context *ctx = nullptr;
    if (mpr_context_create(nullptr, &ctx) != MPR_OK) return 1;
    mpr_model *model = nullptr;
    mpr_status status = mpr_model_load(ctx, "/nonexistent.onnx", nullptr, &model);
    std::printf("%s %s\n", mpr_version(), mpr_status_text(status));
    mpr_context_destroy(ctx);
    return status == MPR_E_IO ? 0 : 1;
}
