"""The C of a GPU's tape: it launches kernels, and calls PyTorch's operators between them."""

import ctypes

from blockbuster_fusion.runtime import traced
from blockbuster_fusion.runtime.triton import descriptors, library_call_source
from blockbuster_fusion.runtime.triton.library_call_source import CODES
from blockbuster_fusion.runtime.triton.variants import ALIGNED


class Form(ctypes.Structure):
    """A form of a kernel as C has it; without a function it is memory to clear."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("odd", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("sized", ctypes.c_void_p),
        ("maps", ctypes.c_void_p),
        ("parameter_count", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("code_count", ctypes.c_int64),
        ("sized_count", ctypes.c_int64),
        ("map_count", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("early", ctypes.c_uint),
    )


class Entry(ctypes.Structure):
    """A launch: the forms of a kernel, a call of an operator, or results to release."""

    _fields_ = (
        ("forms", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("call", ctypes.c_void_p),
        ("released", ctypes.c_void_p),
        ("released_count", ctypes.c_int64),
    )


SOURCE = f"""\
{traced.SOURCE}
{library_call_source.SOURCE}
{descriptors.SOURCE}
#include <dlfcn.h>
#include <string.h>

struct form {{
    void *function;
    const int64_t *parameters, *places, *bases, *offsets, *odd, *code, *sized, *maps;
    int64_t parameter_count, count, code_count, sized_count, map_count, bytes, blocks;
    unsigned grid[3], threads, shared, early;
}};
struct entry {{
    const struct form *forms;
    int64_t count;
    struct call *call;
    const int64_t *released;
    int64_t released_count;
}};
/* CUlaunchAttribute and CUlaunchConfig of the driver, and the attribute of early kernels. */
struct attribute {{
    int64_t id;
    int value[16];
}};
struct config {{
    u grid[3], block[3], shared;
    void *stream;
    const struct attribute *attributes;
    u attribute_count;
}};
enum {{ PROGRAMMATIC_STREAM_SERIALIZATION = 6 }};
typedef int (*launch_kernel)(void *, u, u, u, u, u, u, u, void *, void **, void **);
typedef int (*launch_with)(const struct config *, void *, void **, void **);
typedef int (*clear_memory)(uint64_t, unsigned char, size_t, void *);
static launch_kernel launch;
static launch_with launch_early; /* none in old drivers, where kernels start one after the other */
static clear_memory clear;
static int (*current)(void **), (*device_of)(int *, int), (*retain)(void **, int), (*set)(void *);

int find(const char *library) {{
    void *found = dlopen(library, RTLD_NOW);
    if (!found) return 1;
    launch = (launch_kernel)dlsym(found, "cuLaunchKernel");
    launch_early = (launch_with)dlsym(found, "cuLaunchKernelEx");
    clear = (clear_memory)dlsym(found, "cuMemsetD8Async");
    encode = (encode_map)dlsym(found, "cuTensorMapEncodeTiled");
    *(void **)&current = dlsym(found, "cuCtxGetCurrent");
    *(void **)&device_of = dlsym(found, "cuDeviceGet");
    *(void **)&retain = dlsym(found, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(found, "cuCtxSetCurrent");
    return !launch || !clear || !current || !device_of || !retain || !set;
}}

/* A thread that has not used the GPU yet has no context: it gets that of PyTorch. */
static int with_context(int number) {{
    void *context = 0;
    int device, failed = current(&context);
    if (failed || context) return failed;
    failed = device_of(&device, number);
    if (!failed) failed = retain(&context, device);
    return failed ? failed : set(context);
}}

/* Launches a kernel in one of its forms, if that fits. One that comes right after a kernel starts
   early if it may: what else is in the stream before it ends first. */
static int launched(const struct form *one, const int64_t *addresses, const int64_t *numbers,
                    void *stream, int is_after_kernel) {{
    int64_t parameters[one->parameter_count], made[one->code_count + 1], other = 0;
    void *pointers[one->parameter_count];
    if (!traced(one->code, one->code_count, numbers, made)) return UNFIT;
    memcpy(parameters, one->parameters, sizeof(parameters));
    for (int64_t j = 0; j < one->count; j++) {{
        const int64_t at = addresses[one->bases[j]] + one->offsets[j];
        parameters[one->places[j]] = at;
        other |= (at % {ALIGNED} != 0) != one->odd[j];
    }}
    if (!one->function) return clear((uint64_t)parameters[0], 0, (size_t)one->bytes, stream);
    if (other) return UNFIT;
    for (int64_t j = 0; j < one->sized_count; j++)
        parameters[one->sized[2 * j]] = made[one->sized[2 * j + 1]];
    for (int64_t j = 0; j < one->parameter_count; j++) pointers[j] = &parameters[j];
    struct map maps[one->map_count + 1];
    if (one->map_count && !encode) return UNFIT;
    for (int64_t j = 0; j < one->map_count; j++) {{
        const int64_t *map = one->maps + j * {descriptors.ENCODED}, place = map[0];
        const int64_t partner = map[{descriptors.ENCODED} - 1];
        int64_t low = parameters[place], distance = 0;
        if (partner >= 0) {{
            distance = parameters[partner] - low;
            low += distance < 0 ? distance : 0;
            parameters[partner] = distance < 0 ? {descriptors.SWAPPED} : {descriptors.IN_ORDER};
            distance = distance < 0 ? -distance : distance;
            if (!are_apart(map + 1, distance)) return UNFIT;
        }}
        const int failed = encoded(&maps[j], map + 1, low, distance);
        if (failed) return failed;
        pointers[place] = &maps[j];
    }}
    const unsigned *grid = one->grid, blocks = one->blocks < 0 ? grid[0] : made[one->blocks];
    if (one->early && is_after_kernel && launch_early) {{
        const struct attribute early = {{PROGRAMMATIC_STREAM_SERIALIZATION, {{1}}}};
        const struct config config = {{
            {{blocks, grid[1], grid[2]}}, {{one->threads, 1, 1}}, one->shared, stream, &early, 1}};
        return launch_early(&config, one->function, pointers, 0);
    }}
    return launch(one->function, blocks, grid[1], grid[2], one->threads, 1, 1, one->shared, stream,
                  pointers, 0);
}}

/* Another thread may be in `play` meanwhile: it sees the new form as a whole, or not at all. */
void publish(struct entry *one) {{
    __atomic_store_n(&one->count, one->count + 1, __ATOMIC_RELEASE);
}}

int64_t play(const struct entry *entries, int64_t count, int64_t *addresses,
             const int64_t *numbers, void *stream, int device, int mode) {{
    const int lost = with_context(device);
    if (lost) return lost;
    int is_after_kernel = 0;
    for (int64_t i = 0; i < count; i++) {{
        const struct entry *one = &entries[i];
        release(addresses, one->released, one->released_count);
        if (one->released) continue;
        const int64_t forms = __atomic_load_n(&one->count, __ATOMIC_ACQUIRE);
        int failed = one->call ? called(one->call, addresses, numbers, mode) : UNFIT;
        for (int64_t j = 0; j < forms && failed == UNFIT; j++)
            failed = launched(&one->forms[j], addresses, numbers, stream, is_after_kernel);
        if (failed) return i * {CODES} + failed;
        is_after_kernel = !one->call && one->forms[0].function;
    }}
    return 0;
}}
"""
