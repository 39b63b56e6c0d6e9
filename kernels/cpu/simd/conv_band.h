/* Convolutions worked on in bands of output rows; see conv_band.c. */
#ifndef MPRI_CPU_CONV_BAND_H
#define MPRI_CPU_CONV_BAND_H

#include "kernels/cpu/simd/conv.h"

typedef enum ConvBandUse { CONV_BAND_FORWARD, CONV_BAND_INPUT, CONV_BAND_WEIGHT } ConvBandUse;

typedef struct ConvBand {
    ConvShape s;
    ConvBandUse use;
    DType tx, tw, ty; /* of x and dx, w and dw, y and dy */
    const void *x, *w, *y; /* of the two that are read */
    void *to;              /* y, dx or dw */
    const Tensor *bias; /* of y, or of dx (ConvTranspose); or NULL */
    void *workspace;
} ConvBand;

typedef struct ConvBandApi {
    bool (*fits)(const ConvShape *s, ConvBandUse use);       /* never depends on the threads */
    size_t (*workspace)(const ConvBand *c, int threads);     /* reads s, use and the types */
    void (*run)(const ConvBand *c, Threads *threads);
} ConvBandApi;

extern const ConvBandApi MPRI_NAME(conv_band);

#endif
