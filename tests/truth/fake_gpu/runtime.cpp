// libcudart: devices, memory, streams and events. Kernels are not run. Compiled with CUDA_MAJOR=11, 12 or 13, since the layout of
// cudaDeviceProp changed in 13 (offsets measured with the headers of 12.4 and 13.0).
#include <cstring>
#include <mutex>

#include "device.hpp"

extern "C" int fakegpu_attribute(int* value, int attribute);
extern "C" void* fakegpu_symbol(const char* name);

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600, kNotSupported = 801;
thread_local int t_error = 0, t_device = 0;

int fail(int error) { return t_error = error; }

struct Stream {
  int priority;
};

struct Dim3 {
  unsigned x, y, z;
};

thread_local struct {
  Dim3 grid, block;
  std::size_t shared;
  void* stream;
} t_launch;

template <class T>
void put(char* base, std::size_t offset, T value) {
  std::memcpy(base + offset, &value, sizeof value);
}

void fill_properties(char* p) {
  const auto& d = *fakegpu_properties();
#if CUDA_MAJOR >= 13
  constexpr std::size_t kSize = 1008, kMultiprocessors = 384, kCanMapHost = 392, kConcurrent = 560, kPciBus = 568, kEngines = 584,
                        kUnified = 588, kBus = 592, kL2 = 596, kThreadsPerMp = 604, kSharedPerMp = 624, kRegistersPerMp = 632,
                        kManaged = 636, kConcurrentManaged = 656, kCooperative = 668, kOptin = 672, kBlocksPerMp = 688,
                        kReservedShared = 696;
#else
  constexpr std::size_t kSize = 1032, kMultiprocessors = 388, kCanMapHost = 400, kConcurrent = 576, kPciBus = 584, kEngines = 600,
                        kUnified = 604, kBus = 612, kL2 = 616, kThreadsPerMp = 624, kSharedPerMp = 640, kRegistersPerMp = 648,
                        kManaged = 652, kConcurrentManaged = 676, kCooperative = 688, kOptin = 696, kBlocksPerMp = 712,
                        kReservedShared = 720;
#endif
  std::memset(p, 0, kSize);
  std::strncpy(p, d.name, 255);
  put<std::uint64_t>(p, 256, 0x1122334455667788u);           // uuid
  put<std::uint64_t>(p, 288, d.memory);
  put<std::uint64_t>(p, 296, 49152);                         // shared memory a block
  put(p, 304, 65536);
  put(p, 308, 32);
  put<std::uint64_t>(p, 312, 2147483647);
  put(p, 320, 1024);
  put(p, 324, 1024), put(p, 328, 1024), put(p, 332, 64);
  put(p, 336, 2147483647), put(p, 340, 65535), put(p, 344, 65535);
  put<std::uint64_t>(p, 352, 65536);
  put(p, 360, d.major), put(p, 364, d.minor);
  put<std::uint64_t>(p, 368, 512);
  put(p, kMultiprocessors, d.multiprocessors);
  put(p, kCanMapHost, 1);
  put(p, kConcurrent, 1);
  put(p, kPciBus, 7);
  put(p, kEngines, 3);
  put(p, kUnified, 1);
  put(p, kBus, 5120);
  put(p, kL2, d.l2_bytes);
  put(p, kThreadsPerMp, d.threads_per_multiprocessor);
  put<std::uint64_t>(p, kSharedPerMp, static_cast<std::uint64_t>(d.shared_per_multiprocessor));
  put(p, kRegistersPerMp, 65536);
  put(p, kManaged, 1), put(p, kConcurrentManaged, 1), put(p, kCooperative, 1);
  put<std::uint64_t>(p, kOptin, static_cast<std::uint64_t>(d.shared_per_block_optin));
  put(p, kBlocksPerMp, d.blocks_per_multiprocessor);
  put<std::uint64_t>(p, kReservedShared, 1024);
}

int allocate(void** address, std::size_t bytes) {
  *address = nullptr;
  if (bytes == 0) return 0;
  *address = fakegpu_allocate(bytes);
  return *address ? 0 : fail(kOutOfMemory);
}

}  // namespace

extern "C" {

// Devices
int cudaGetDeviceCount(int* count) { return *count = fakegpu_device_count(), 0; }
int cudaGetDevice(int* device) { return *device = t_device, 0; }
int cudaSetDevice(int device) { return t_device = device, 0; }
#if CUDA_MAJOR >= 12
int cudaGetDeviceProperties_v2(char* properties, int) { return fill_properties(properties), 0; }
#endif
int cudaGetDeviceProperties(char* properties, int) { return fill_properties(properties), 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int) { return fakegpu_attribute(value, attribute); }
int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (length < 13) return fail(kInvalidValue);
  std::strcpy(text, "0000:07:00.0");
  text[6] = static_cast<char>('0' + device % 10);
  return 0;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
int cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, 0; }
int cudaDriverGetVersion(int* version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int* version) { return *version = CUDA_VERSION_NUMBER, 0; }
int cudaDeviceSynchronize() { return fakegpu_synchronize(), 0; }

// Errors
int cudaGetLastError() {
  const int e = t_error;
  t_error = 0;
  return e;
}
int cudaPeekAtLastError() { return t_error; }
const char* cudaGetErrorString(int error) {
  return error == 0 ? "no error" : error == kOutOfMemory ? "out of memory" : error == kNotReady ? "device not ready" : "invalid argument";
}
const char* cudaGetErrorName(int error) {
  return error == 0 ? "cudaSuccess" : error == kOutOfMemory ? "cudaErrorMemoryAllocation" : error == kNotReady ? "cudaErrorNotReady" : "cudaErrorInvalidValue";
}

// Memory
int cudaMalloc(void** address, std::size_t bytes) { return allocate(address, bytes); }
int cudaMallocAsync(void** address, std::size_t bytes, void*) { return allocate(address, bytes); }
int cudaFree(void* address) {
  fakegpu_synchronize();                                     // cudaFree waits for the device
  return fakegpu_free(address) ? 0 : fail(kInvalidValue);
}
int cudaFreeAsync(void* address, void*) { return fakegpu_free(address) ? 0 : fail(kInvalidValue); }
int cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) { return fakegpu_memory(free_bytes, total), 0; }
int cudaMallocManaged(void** address, std::size_t bytes, unsigned) { return (*address = fakegpu_host_allocate(bytes)) ? 0 : fail(kOutOfMemory); }
int cudaHostAlloc(void** address, std::size_t bytes, unsigned) { return (*address = fakegpu_host_allocate(bytes)) ? 0 : fail(kOutOfMemory); }
int cudaMallocHost(void** address, std::size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
int cudaFreeHost(void* address) { return fakegpu_host_free(address) ? 0 : fail(kInvalidValue); }
int cudaHostRegister(void* address, std::size_t bytes, unsigned) { return fakegpu_host_register(address, bytes), 0; }
int cudaHostUnregister(void* address) { return fakegpu_host_unregister(address) ? 0 : fail(kInvalidValue); }
int cudaHostGetDevicePointer(void** device, void* host, unsigned) { return *device = host, 0; }
int cudaGetSymbolAddress(void** address, const void* symbol) { return *address = const_cast<void*>(symbol), 0; }
int cudaMemcpy(void* to, const void* from, std::size_t bytes, int) { return fakegpu_copy(to, from, bytes), fakegpu_synchronize(), 0; }
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, void*) { return fakegpu_copy(to, from, bytes), 0; }
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, void*) { return fakegpu_copy(to, from, bytes), 0; }
int cudaMemset(void* to, int value, std::size_t bytes) { return fakegpu_set(to, value, bytes), 0; }
int cudaMemsetAsync(void* to, int value, std::size_t bytes, void*) { return fakegpu_set(to, value, bytes), 0; }
struct PointerAttributes {
  int type, device;
  void *on_device, *on_host;
};
int cudaPointerGetAttributes(PointerAttributes* a, const void* address) {
  auto* p = const_cast<void*>(address);
  if (fakegpu_is_device(address)) *a = {2, 0, p, nullptr};
  else if (fakegpu_is_pinned(address)) *a = {1, 0, p, p};
  else *a = {0, 0, nullptr, p};                              // unregistered
  return 0;
}
int cudaIpcGetMemHandle(void*, void*) { return fail(kNotSupported); }
int cudaIpcOpenMemHandle(void**, ...) { return fail(kNotSupported); }
int cudaIpcGetEventHandle(void*, void*) { return fail(kNotSupported); }
int cudaDeviceGetDefaultMemPool(void** pool, int) { return *pool = &t_launch, 0; }

// Streams and events
int cudaStreamCreateWithPriority(Stream** stream, unsigned, int priority) { return *stream = new Stream{priority}, 0; }
int cudaStreamCreateWithFlags(Stream** stream, unsigned) { return *stream = new Stream{0}, 0; }
int cudaStreamCreate(Stream** stream) { return *stream = new Stream{0}, 0; }
int cudaStreamDestroy(Stream* stream) { return delete stream, 0; }
int cudaStreamGetPriority(Stream* stream, int* priority) { return *priority = stream > reinterpret_cast<Stream*>(2) ? stream->priority : 0, 0; }
int cudaStreamSynchronize(void*) { return fakegpu_synchronize(), 0; }
int cudaStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
int cudaStreamGetCaptureInfo_v2(void*, int* status, unsigned long long* id, ...) {
  *status = 0;
  if (id) *id = 0;
  return 0;
}
int cudaStreamGetCaptureInfo(void* s, int* status, unsigned long long* id, ...) { return cudaStreamGetCaptureInfo_v2(s, status, id); }
int cudaStreamBeginCapture(void*, int) { return fail(kNotSupported); }
int cudaLaunchHostFunc(void*, void (*function)(void*), void* data) { return function(data), 0; }
int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) { return function(stream, 0, data), 0; }
int cudaEventCreateWithFlags(FakeGpuEvent** event, unsigned) { return *event = new FakeGpuEvent{0}, 0; }
int cudaEventCreate(FakeGpuEvent** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(FakeGpuEvent* event) { return delete event, 0; }
int cudaEventRecord(FakeGpuEvent* event, void*) { return fakegpu_record(event), 0; }
int cudaEventRecordWithFlags(FakeGpuEvent* event, void*, unsigned) { return fakegpu_record(event), 0; }
int cudaEventQuery(FakeGpuEvent* event) { return fakegpu_done(event) ? 0 : fail(kNotReady); }
int cudaEventSynchronize(FakeGpuEvent*) { return fakegpu_synchronize(), 0; }
int cudaEventElapsedTime(float* ms, FakeGpuEvent*, FakeGpuEvent*) { return *ms = 1.0f, 0; }
int cudaEventElapsedTime_v2(float* ms, FakeGpuEvent*, FakeGpuEvent*) { return *ms = 1.0f, 0; }

// Kernels
void** __cudaRegisterFatBinary(void*) {
  static void* handle[8];
  return handle;
}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared, void* stream) {
  t_launch = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared, void** stream) {
  *grid = t_launch.grid, *block = t_launch.block, *shared = t_launch.shared, *stream = t_launch.stream;
  return 0;
}
int __cudaGetKernel(void** kernel, const void* function) { return *kernel = const_cast<void*>(function), 0; }
int cudaGetKernel(void** kernel, const void* function) { return *kernel = const_cast<void*>(function), 0; }
int __cudaLaunchKernel() { return fakegpu_submit(), 0; }
int cudaLaunchKernel() { return fakegpu_submit(), 0; }
int cudaLaunchKernelExC() { return fakegpu_submit(), 0; }
int cudaLaunchCooperativeKernel() { return fakegpu_submit(), 0; }
int cudaFuncGetAttributes(char* a, const void*) {
  const int capability = fakegpu_properties()->major * 10 + fakegpu_properties()->minor;
  std::memset(a, 0, 64);
  put(a, 24, 1024);                                          // threads a block
  put(a, 28, 32);
  put(a, 32, capability), put(a, 36, capability);            // PTX and binary version
  put(a, 44, fakegpu_properties()->shared_per_block_optin);
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) { return *blocks = 1, 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t, unsigned) { return *blocks = 1, 0; }
int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const void*) { return *clusters = 1, 0; }
int cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const void*) { return *size = 8, 0; }

int cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long, int* status) {
  *function = fakegpu_symbol(symbol);
  if (status) *status = *function ? 0 : 1;
  return 0;
}
int cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long flags, int* status) {
  return cudaGetDriverEntryPoint(symbol, function, flags, status);
}
}
