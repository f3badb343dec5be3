// The CUDA driver for the emulated GPU: memory of the host, and kernels that the emulated NVRTC made. Everything is done at once; a captured
// graph is a list of what to do.

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

typedef int Result;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

typedef void (*Emulate)(const void *, const unsigned *, const unsigned *, unsigned);

struct Function {
    std::string name;
    Emulate emulate;
    size_t size;
};
struct Module {
    void *library;
    std::map<std::string, Function> functions;
};
struct Graph {
    std::vector<std::function<void()>> work;
};
struct Stream {
    Graph *capture;
};

// As in cuda.h.
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    Stream *stream;
    void *attributes;
    unsigned count;
};

static std::mutex turn;
static std::map<char *, size_t> allocated;
static size_t used;
static const size_t TOTAL = 8ull << 30;

static Result allocate(char **to, size_t size) {
    const std::lock_guard<std::mutex> lock(turn);
    if (used + size > TOTAL) return OUT_OF_MEMORY;
    *to = (char *)aligned_alloc(256, (size + 255) / 256 * 256);
    // Memory of a device holds anything.
    memset(*to, 0xa5, size);
    allocated[*to] = size, used += size;
    return OK;
}

static Result release(char *memory) {
    const std::lock_guard<std::mutex> lock(turn);
    const auto found = allocated.find(memory);
    if (found == allocated.end()) return INVALID;
    used -= found->second;
    memset(memory, 0xdd, found->second);
    allocated.erase(found);
    free(memory);
    return OK;
}

static Result put(Stream *stream, std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(turn);
    if (stream && stream->capture) stream->capture->work.push_back(work);
    else work();
    return OK;
}

// The compute capability is none that exists.
static int attribute(int which) {
    switch (which) {
    case 75: return 99;
    case 76: return 0;
    // Multiprocessors: one, so that kernels whose blocks wait for each other have one.
    case 16: return 1;
    case 97: return 200 << 10;
    case 115: return 1;
    case 100: return 0;
    default: return 1;
    }
}

extern "C" {
Result cuInit(unsigned) { return OK; }
Result cuDriverGetVersion(int *version) { return *version = 13000, OK; }
Result cuDeviceGetCount(int *count) { return *count = 1, OK; }
Result cuDeviceGet(int *device, int ordinal) { return *device = ordinal, OK; }
Result cuDeviceGetAttribute(int *value, int which, int) { return *value = attribute(which), OK; }
Result cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated GPU"), OK; }
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = TOTAL, OK; }
Result cuDevicePrimaryCtxRetain(void **context, int) { return *context = (void *)1, OK; }
Result cuDevicePrimaryCtxRelease_v2(int) { return OK; }
Result cuCtxSetCurrent(void *) { return OK; }
Result cuCtxGetCurrent(void **context) { return *context = (void *)1, OK; }
Result cuCtxSynchronize() { return OK; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = TOTAL - used, *total = TOTAL, OK; }
Result cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = (void *)1, OK; }
Result cuMemPoolSetAttribute(void *, int, void *) { return OK; }
Result cuGetErrorName(int, const char **name) { return *name = "EMULATED", OK; }
Result cuGetErrorString(int, const char **text) { return *text = "the emulated driver failed", OK; }

Result cuStreamCreate(Stream **stream, unsigned) { return *stream = new Stream{}, OK; }
Result cuStreamDestroy_v2(Stream *stream) { return delete stream, OK; }
Result cuStreamSynchronize(Stream *) { return OK; }
Result cuStreamWaitEvent(Stream *, void *, unsigned) { return OK; }
Result cuEventCreate(void **event, unsigned) { return *event = (void *)1, OK; }
Result cuEventRecord(void *, Stream *) { return OK; }
Result cuEventSynchronize(void *) { return OK; }
Result cuEventQuery(void *) { return OK; }
Result cuEventDestroy_v2(void *) { return OK; }
Result cuEventElapsedTime(float *time, void *, void *) { return *time = 0.001f, OK; }

Result cuMemAllocAsync(char **to, size_t size, Stream *) { return allocate(to, size); }
Result cuMemAlloc_v2(char **to, size_t size) { return allocate(to, size); }
Result cuMemFreeAsync(char *memory, Stream *) { return release(memory); }
Result cuMemFree_v2(char *memory) { return release(memory); }
Result cuMemHostAlloc(void **to, size_t size, unsigned) { return *to = malloc(size), OK; }
Result cuMemFreeHost(void *memory) { return free(memory), OK; }
Result cuMemsetD8Async(char *at, unsigned char value, size_t count, Stream *stream) {
    return put(stream, [=] { memset(at, value, count); });
}
Result cuMemcpyHtoDAsync_v2(char *to, const void *from, size_t count, Stream *stream) {
    return put(stream, [=] { memcpy(to, from, count); });
}
Result cuMemcpyDtoHAsync_v2(void *to, const char *from, size_t count, Stream *stream) {
    return put(stream, [=] { memcpy(to, from, count); });
}
Result cuMemcpyDtoDAsync_v2(char *to, const char *from, size_t count, Stream *stream) {
    return put(stream, [=] { memcpy(to, from, count); });
}

Result cuModuleLoadData(Module **to, const void *image) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    char path[] = "/tmp/emulated-module-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || write(file, image, size) != (ssize_t)size) return INVALID;
    close(file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    unlink(path);
    if (!library) return INVALID;
    return *to = new Module{library, {}}, OK;
}
Result cuModuleUnload(Module *module) { return dlclose(module->library), delete module, OK; }
Result cuModuleGetFunction(Function **to, Module *module, const char *name) {
    const std::lock_guard<std::mutex> lock(turn);
    const Emulate emulate = (Emulate)dlsym(module->library, (std::string("emulate_") + name).c_str());
    const unsigned long *size = (const unsigned long *)dlsym(module->library, (std::string("size_of_") + name).c_str());
    if (!emulate || !size) return NOT_FOUND;
    return *to = &(module->functions[name] = Function{name, emulate, *size}), OK;
}
Result cuFuncGetAttribute(int *value, int which, Function *) { return *value = which == 0 ? 1024 : 0, OK; }
Result cuFuncSetAttribute(Function *, int, int) { return OK; }
Result cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *size) {
    if (index || !function->size) return INVALID;
    return *offset = 0, *size = function->size, OK;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *, int, size_t) { return *blocks = 1, OK; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *, int, size_t, unsigned) { return *blocks = 1, OK; }

Result cuLaunchKernelEx(const LaunchConfig *config, Function *function, void **parameters, void **) {
    std::string args(parameters ? (const char *)parameters[0] : "", function->size);
    const LaunchConfig launch = *config;
    return put(config->stream, [=] {
        // Aligned as arguments are.
        alignas(64) static char copy[32 << 10];
        memcpy(copy, args.data(), args.size());
        function->emulate(copy, launch.grid, launch.block, launch.shared);
    });
}

Result cuStreamBeginCapture_v2(Stream *stream, int) { return stream->capture = new Graph{}, OK; }
Result cuStreamEndCapture(Stream *stream, Graph **graph) { return *graph = stream->capture, stream->capture = nullptr, OK; }
Result cuGraphInstantiateWithFlags(Graph **to, Graph *graph, unsigned long long) { return *to = new Graph(*graph), OK; }
Result cuGraphLaunch(Graph *graph, Stream *) {
    const std::lock_guard<std::mutex> lock(turn);
    for (auto &work : graph->work) work();
    return OK;
}
Result cuGraphExecDestroy(Graph *graph) { return delete graph, OK; }
Result cuGraphDestroy(Graph *graph) { return delete graph, OK; }
}
