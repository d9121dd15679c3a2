/* What ONNX Runtime looks at while it opens a session: sizes, versions, handles. All other functions are generated, weak,
 * and say success. Device memory is host memory; a launch does nothing, so nothing that is computed means anything. */
#include <stdlib.h>
#include <string.h>
#define PUT(where, what) \
  do {                   \
    if (where) *(where) = (what); \
  } while (0)
#define SUCCESS return 0
static char token[4096]; /* an address to hand out as a stream, an event, a graph, a kernel */

#ifdef FOR_CUDART
#include <driver_types.h>

enum { CUDA_VERSION_TOLD = 13000, PROCESSORS = 132, OPT_IN_BYTES = 227 * 1024, NOT_THERE = 1 };
static const size_t GIGABYTES = (size_t)1 << 30;

static int architecture(void) { /* CUDA_PLACEMENT_SM=80: an A100; 90, an H100, if not set */
  const char *asked = getenv("CUDA_PLACEMENT_SM");
  return asked && *asked ? atoi(asked) : 90;
}

/* -- the device -- */
int cudaGetDeviceCount(int *n) { PUT(n, 1); SUCCESS; }
int cudaGetDevice(int *n) { PUT(n, 0); SUCCESS; }
int cudaDriverGetVersion(int *v) { PUT(v, CUDA_VERSION_TOLD); SUCCESS; }
int cudaRuntimeGetVersion(int *v) { PUT(v, CUDA_VERSION_TOLD); SUCCESS; }
int cudaMemGetInfo(size_t *left, size_t *all) { PUT(left, 80 * GIGABYTES); PUT(all, 80 * GIGABYTES); SUCCESS; }
const char *cudaGetErrorName(int code) { return code ? "error" : "success"; }
const char *cudaGetErrorString(int code) { return cudaGetErrorName(code); }

int cudaGetDeviceProperties(struct cudaDeviceProp *told, int device) {
  struct cudaDeviceProp it = {.major = architecture() / 10, .minor = architecture() % 10, .warpSize = 32};
  strcpy(it.name, "no device: placement only");
  it.multiProcessorCount = PROCESSORS, it.totalGlobalMem = 80 * GIGABYTES, it.totalConstMem = 65536;
  it.maxThreadsPerBlock = 1024, it.maxThreadsPerMultiProcessor = 2048, it.maxBlocksPerMultiProcessor = 32;
  it.sharedMemPerBlock = 49152, it.sharedMemPerBlockOptin = OPT_IN_BYTES, it.reservedSharedMemPerBlock = 1024;
  it.sharedMemPerMultiprocessor = OPT_IN_BYTES + 1024, it.regsPerBlock = it.regsPerMultiprocessor = 65536;
  it.l2CacheSize = 50 * 1024 * 1024;
  for (int axis = 0; axis < 3; axis++) {
    it.maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
    it.maxGridSize[axis] = axis ? 65535 : 0x7fffffff;
  }
  it.memoryPoolsSupported = it.canMapHostMemory = it.unifiedAddressing = it.concurrentKernels = 1;
  *told = it;
  SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int which, int device) {
  static const int known[][2] = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},         {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrWarpSize, 32},                     {cudaDevAttrMaxSharedMemoryPerBlockOptin, OPT_IN_BYTES},
      {cudaDevAttrMultiProcessorCount, PROCESSORS},  {cudaDevAttrMaxSharedMemoryPerMultiprocessor, OPT_IN_BYTES + 1024},
  };
  *value = which == cudaDevAttrComputeCapabilityMajor   ? architecture() / 10
           : which == cudaDevAttrComputeCapabilityMinor ? architecture() % 10
                                                        : 1;
  for (size_t row = 0; row < sizeof known / sizeof *known; row++)
    if (known[row][0] == which) *value = known[row][1];
  SUCCESS;
}

/* -- memory -- */
static int take(void **at, size_t bytes) { return (*at = calloc(bytes + !bytes, 1)) ? 0 : cudaErrorMemoryAllocation; }
int cudaMalloc(void **at, size_t bytes) { return take(at, bytes); }
int cudaMallocHost(void **at, size_t bytes) { return take(at, bytes); }
int cudaMallocAsync(void **at, size_t bytes) { return take(at, bytes); }
int cudaMallocFromPoolAsync(void **at, size_t bytes) { return take(at, bytes); }
int cudaHostAlloc(void **at, size_t bytes, unsigned how) { return take(at, bytes); }
int cudaFree(void *at) { free(at); SUCCESS; }
int cudaFreeAsync(void *at) { free(at); SUCCESS; }
int cudaFreeHost(void *at) { free(at); SUCCESS; }
int cudaMemset(void *at, int byte, size_t bytes) { memset(at, byte, bytes); SUCCESS; }
int cudaMemsetAsync(void *at, int byte, size_t bytes) { memset(at, byte, bytes); SUCCESS; }
int cudaMemcpy(void *to, const void *from, size_t bytes) { memmove(to, from, bytes); SUCCESS; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes) { memmove(to, from, bytes); SUCCESS; }
int cudaMemcpyFromSymbol(void *to, const void *name, size_t bytes) { memset(to, 0, bytes); SUCCESS; }
int cudaMemcpy2DAsync(char *to, size_t step, const char *from, size_t stride, size_t width, size_t rows) {
  for (; rows; rows--, to += step, from += stride) memmove(to, from, width);
  SUCCESS;
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *told, void *at) {
  *told = (struct cudaPointerAttributes){.type = cudaMemoryTypeDevice, .devicePointer = at, .hostPointer = at};
  SUCCESS;
}
int cudaMemPoolGetAttribute(void *pool, int which, unsigned long long *value) { PUT(value, 0); SUCCESS; }

/* -- streams, graphs, kernels -- */
int cudaStreamIsCapturing(void *stream, int *state) { PUT(state, 0); SUCCESS; }
int cudaStreamEndCapture(void *stream, void **graph) { PUT(graph, token); SUCCESS; }
int cudaEventElapsedTime(float *milliseconds) { PUT(milliseconds, 1e-3f); SUCCESS; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks) { PUT(blocks, 1); SUCCESS; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *told, const void *kernel) {
  *told = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .maxDynamicSharedSizeBytes = OPT_IN_BYTES};
  told->binaryVersion = told->ptxVersion = architecture();
  SUCCESS;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **at, unsigned v, unsigned long long how, int *found) {
  PUT(at, NULL);
  PUT(found, NOT_THERE);
  SUCCESS;
}
void **__cudaRegisterFatBinary(void *code) { return (void **)token; }
#endif

#ifdef FOR_CUDNN
enum { CUDNN_VERSION_TOLD = 91300 };
size_t cudnnGetVersion(void) { return CUDNN_VERSION_TOLD; }
const char *cudnnGetErrorString(int code) { return code ? "error" : "success"; }
void cudnnGetLastErrorString(char *text, size_t room) { if (room) *text = 0; }
int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) { PUT(bytes, 256); SUCCESS; }

/* Recurrent kernels lay out their constant weights when they are made: each is told to be one element at the start. */
int cudnnGetRNNWeightSpaceSize(void *handle, void *layer, size_t *bytes) { PUT(bytes, 1048576); SUCCESS; }
int cudnnGetRNNTempSpaceSizes(void *handle, void *layer, int mode, void *data, size_t *work, size_t *kept) {
  PUT(work, 256);
  PUT(kept, 256);
  SUCCESS;
}
int cudnnGetRNNWeightParams(void *handle, void *layer, int number, size_t bytes, void *weights, int gate, void *shape,
                            void **matrix, void *bias_shape, void **bias) {
  PUT(matrix, weights);
  PUT(bias, weights);
  SUCCESS;
}
int cudnnGetTensorNdDescriptor(void *shape, int room, int *type, int *rank, int *sizes, int *strides) {
  PUT(type, 0);
  PUT(rank, 3);
  for (int axis = 0; axis < room; axis++) sizes[axis] = strides[axis] = 1;
  SUCCESS;
}
#endif
