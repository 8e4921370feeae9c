// libcuda.so.1: virtual memory management (expandable segments), modules and contexts. What is not written here returns success.
#include <dlfcn.h>

#include <cstring>
#include <initializer_list>

#include "device.hpp"

namespace {
constexpr int kOutOfMemory = 2, kInvalidValue = 1;
char g_context, g_module, g_function;
}  // namespace

extern "C" {

struct CuMemHandle {
  std::size_t bytes;
};

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetCount(int* count) { return *count = fakegpu_device_count(), 0; }
int cuDeviceGetName(char* name, int length, int) { return std::strncpy(name, fakegpu_properties()->name, static_cast<std::size_t>(length)), 0; }
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = fakegpu_properties()->memory, 0; }
int cuDeviceComputeCapability(int* major, int* minor, int) { return *major = fakegpu_properties()->major, *minor = fakegpu_properties()->minor, 0; }
int cuCtxGetCurrent(void** context) { return *context = &g_context, 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxPopCurrent_v2(void** context) {
  if (context) *context = &g_context;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &g_context, 0; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; }
int cuGetErrorString(int error, const char** text) { return *text = error == kOutOfMemory ? "out of memory" : error == 0 ? "no error" : "error", 0; }
int cuGetErrorName(int error, const char** text) { return *text = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 0 ? "CUDA_SUCCESS" : "CUDA_ERROR", 0; }

// Attribute numbers of cudaDeviceAttr and CUdevice_attribute agree.
int fakegpu_attribute(int* value, int attribute) {
  const auto& p = *fakegpu_properties();
  switch (attribute) {
    case 1: *value = 1024; break;                            // threads a block
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;                      // grid
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;                           // shared memory a block
    case 9: *value = 65536; break;
    case 10: *value = 32; break;                             // warp
    case 12: *value = 65536; break;                          // registers a block
    case 13: *value = 1410000; break;
    case 14: *value = 512; break;
    case 16: *value = p.multiprocessors; break;
    case 19: case 31: case 41: *value = 1; break;
    case 36: *value = 1593000; break;
    case 37: *value = 5120; break;
    case 38: *value = p.l2_bytes; break;
    case 39: *value = p.threads_per_multiprocessor; break;
    case 75: *value = p.major; break;
    case 76: *value = p.minor; break;
    case 78: case 79: case 80: case 83: case 89: case 95: *value = 1; break;
    case 81: *value = p.shared_per_multiprocessor; break;
    case 82: *value = 65536; break;
    case 97: *value = p.shared_per_block_optin; break;
    case 102: case 103: case 115: *value = 1; break;         // virtual memory management, its handles, memory pools
    case 106: *value = p.blocks_per_multiprocessor; break;
    case 111: *value = 1024; break;
    default: *value = 0;
  }
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) { return fakegpu_attribute(value, attribute); }

int cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) { return *bytes = std::size_t{2} << 20, 0; }
int cuMemAddressReserve(void** address, std::size_t bytes, std::size_t, void*, unsigned long long) {
  return (*address = fakegpu_reserve(bytes)) ? 0 : kOutOfMemory;
}
int cuMemAddressFree(void* address, std::size_t bytes) { return fakegpu_unreserve(address, bytes), 0; }
int cuMemCreate(CuMemHandle** handle, std::size_t bytes, const void*, unsigned long long) {
  if (!fakegpu_take(bytes)) return kOutOfMemory;
  *handle = new CuMemHandle{bytes};
  return 0;
}
int cuMemRelease(CuMemHandle* handle) {
  fakegpu_give_back(handle->bytes);
  delete handle;
  return 0;
}
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) { return fakegpu_memory(free_bytes, total), 0; }
int cuMemAlloc_v2(void** address, std::size_t bytes) { return (*address = fakegpu_allocate(bytes)) ? 0 : kOutOfMemory; }
int cuMemFree_v2(void* address) { return fakegpu_free(address) ? 0 : kInvalidValue; }
int cuMemExportToShareableHandle(void*, void*, int, unsigned long long) { return 801; }       // not supported
int cuPointerGetAttribute(void* data, int attribute, void* address) {
  if (attribute == 2) *static_cast<unsigned*>(data) = fakegpu_is_device(address) ? 2 : 1;      // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  else if (attribute == 3 || attribute == 4) *static_cast<void**>(data) = address;
  else if (attribute == 9) *static_cast<int*>(data) = 0;
  return 0;
}

int cuModuleLoad(void** module, const char*) { return *module = &g_module, 0; }
int cuModuleLoadData(void** module, const void*) { return *module = &g_module, 0; }
int cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) { return *module = &g_module, 0; }
int cuModuleGetFunction(void** function, void*, const char*) { return *function = &g_function, 0; }
int cuLinkCreate_v2(unsigned, void*, void*, void** state) { return *state = &g_module, 0; }
int cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) { return *blocks = 1, 0; }
int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) { return *clusters = 1, 0; }
int cuLaunchKernel() { return fakegpu_submit(), 0; }
int cuLaunchKernelEx() { return fakegpu_submit(), 0; }
int cuLaunchCooperativeKernel() { return fakegpu_submit(), 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = new char, 0; }

void* fakegpu_symbol(const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  for (const char* suffix : {"_v3", "_v2", ""}) {            // the newest form first, as cuGetProcAddress gives it
    char full[256];
    std::strncpy(full, name, 240);
    full[240] = 0;
    std::strcat(full, suffix);
    if (void* found = dlsym(self ? self : RTLD_DEFAULT, full)) return found;
  }
  return nullptr;
}
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* status) {
  *function = fakegpu_symbol(name);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : 500;
}
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
}
