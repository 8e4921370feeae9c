// cuBLAS, cuBLASLt, cuDNN, NCCL, NVRTC: the few functions whose answers torch looks at. build.py takes from this file what each
// library exports. Collectives act as if every rank held what this one holds.
#include <cstring>

#include "device.hpp"

namespace {
constexpr int kAnswers = 1;
char g_handle;
}  // namespace

extern "C" {

#ifdef LIB_cublas
int cublasCreate_v2(void** handle) { return *handle = new char[64](), 0; }
int cublasDestroy_v2(void* handle) { return delete[] static_cast<char*>(handle), 0; }
int cublasGetVersion_v2(void*, int* version) { return *version = CUDA_MAJOR * 10000 + 400, 0; }
int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }
const char* cublasGetStatusString(int) { return "status"; }
const char* cublasGetStatusName(int) { return "status"; }
#endif

#ifdef LIB_cublasLt
int cublasLtCreate(void** handle) { return *handle = &g_handle, 0; }
int cublasLtMatmulDescCreate(void** d, int, int) { return *d = &g_handle, 0; }
int cublasLtMatrixLayoutCreate(void** d, int, unsigned long long, unsigned long long, long long) { return *d = &g_handle, 0; }
int cublasLtMatmulPreferenceCreate(void** d) { return *d = &g_handle, 0; }
std::size_t cublasLtGetVersion() { return CUDA_MAJOR * 10000 + 400; }
struct LtResult {
  std::uint64_t algorithm[8];
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, LtResult* results, int* returned) {
  std::memset(results, 0, sizeof *results);
  results->waves = 1.0f;
  return *returned = kAnswers, 0;
}
#endif

#ifdef LIB_cudnn
std::size_t cudnnGetVersion() { return 91900; }
std::size_t cudnnGetCudartVersion() { return CUDA_MAJOR * 1000; }
int cudnnCreate(void** handle) { return *handle = &g_handle, 0; }
// Graphs: the heuristics (202) offer one engine, which takes no workspace (304, 402); engines have no notes and no knobs. What cuDNN's own
// attention really takes as workspace is not known here.
int cudnnBackendCreateDescriptor(int, void** descriptor) { return *descriptor = &g_handle, 0; }
int cudnnBackendGetAttribute(void*, int name, int, std::int64_t requested, std::int64_t* count, void* elements) {
  const bool one = name == 202 || name == 300 || name == 304 || name == 401 || name == 402 || name == 802 || name == 1301;
  if (count) *count = one ? 1 : 0;
  if (elements && requested > 0 && (name == 304 || name == 402 || name == 802 || name == 1301)) std::memset(elements, 0, 8);
  return 0;
}
int cudnnQueryRuntimeError(void*, int* status, int, void*) { return *status = 0, 0; }
const char* cudnnGetErrorString(int) { return "error"; }
#endif

#ifdef LIB_nvrtc
int nvrtcVersion(int* major, int* minor) { return *major = CUDA_MAJOR, *minor = 0, 0; }
int nvrtcCreateProgram(void** program, ...) { return *program = &g_handle, 0; }
int nvrtcGetPTXSize(void*, std::size_t* bytes) { return *bytes = 16, 0; }
int nvrtcGetCUBINSize(void*, std::size_t* bytes) { return *bytes = 16, 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetProgramLog(void*, char* text) { return *text = 0, 0; }
int nvrtcGetPTX(void*, char* text) { return std::memset(text, 0, 16), 0; }
int nvrtcGetCUBIN(void*, char* text) { return std::memset(text, 0, 16), 0; }
int nvrtcGetLoweredName(void*, const char*, const char** name) { return *name = "kernel", 0; }
const char* nvrtcGetErrorString(int) { return "error"; }
#endif

#ifdef LIB_nccl
struct FakeComm {
  int ranks, rank;
};
struct NcclId {
  char bytes[128];
};
std::size_t nccl_bytes(int type) {
  switch (type) {
    case 0: case 1: case 10: case 11: return 1;              // int8, uint8, fp8
    case 6: case 9: return 2;                                // half, bf16
    case 2: case 3: case 7: return 4;
    default: return 8;
  }
}
int ncclGetVersion(int* version) { return *version = NCCL_VERSION_NUMBER, 0; }
int ncclGetUniqueId(NcclId* id) { return std::memset(id, 1, sizeof *id), 0; }
const char* ncclGetErrorString(int) { return "nccl error"; }
const char* ncclGetLastError(void*) { return "no error"; }
int ncclCommInitRank(FakeComm** comm, int ranks, NcclId, int rank) { return *comm = new FakeComm{ranks, rank}, 0; }
int ncclCommInitRankConfig(FakeComm** comm, int ranks, NcclId, int rank, void*) { return *comm = new FakeComm{ranks, rank}, 0; }
int ncclCommInitRankScalable(FakeComm** comm, int ranks, int rank, int, NcclId*, void*) { return *comm = new FakeComm{ranks, rank}, 0; }
int ncclCommInitAll(FakeComm** comms, int count, const int*) {
  for (int i = 0; i < count; ++i) comms[i] = new FakeComm{count, i};
  return 0;
}
// The size of the colour is known to the caller only; its ranks are those of the parent until it asks.
int ncclCommSplit(FakeComm* comm, int, int key, FakeComm** made, void*) { return *made = new FakeComm{comm->ranks, key}, 0; }
int ncclCommGetAsyncError(FakeComm*, int* error) { return *error = 0, 0; }
int ncclCommCount(FakeComm* comm, int* count) { return *count = comm->ranks, 0; }
int ncclCommUserRank(FakeComm* comm, int* rank) { return *rank = comm->rank, 0; }
int ncclCommCuDevice(FakeComm*, int* device) { return *device = 0, 0; }
int ncclCommRegister(FakeComm*, void*, std::size_t, void** handle) { return *handle = &g_handle, 0; }
int ncclMemAlloc(void** address, std::size_t bytes) { return (*address = fakegpu_allocate(bytes)) ? 0 : 1; }
int ncclMemFree(void* address) { return fakegpu_free(address) ? 0 : 1; }
int ncclRedOpCreatePreMulSum(int* op, ...) { return *op = 5, 0; }
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int, FakeComm*, void*) {
  if (from != to) fakegpu_copy(to, from, count * nccl_bytes(type));
  return fakegpu_submit(), 0;
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int, FakeComm*, void*) {
  if (from != to) fakegpu_copy(to, from, count * nccl_bytes(type));
  return fakegpu_submit(), 0;
}
int ncclReduce(const void* from, void* to, std::size_t count, int type, int, int, FakeComm*, void*) {
  if (from != to) fakegpu_copy(to, from, count * nccl_bytes(type));
  return fakegpu_submit(), 0;
}
int ncclAllGather(const void* from, void* to, std::size_t count, int type, FakeComm* comm, void*) {
  const std::size_t bytes = count * nccl_bytes(type);
  for (int r = 0; r < comm->ranks && bytes <= (std::size_t{1} << 20); ++r)
    if (static_cast<char*>(to) + r * bytes != from) fakegpu_copy(static_cast<char*>(to) + r * bytes, from, bytes);
  return fakegpu_submit(), 0;
}
int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int, FakeComm* comm, void*) {
  const std::size_t bytes = count * nccl_bytes(type);
  const char* mine = static_cast<const char*>(from) + static_cast<std::size_t>(comm->rank) * bytes;
  if (mine != to) fakegpu_copy(to, mine, bytes);
  return fakegpu_submit(), 0;
}
int ncclSend(const void*, std::size_t, int, int, FakeComm*, void*) { return fakegpu_submit(), 0; }
int ncclRecv(void*, std::size_t, int, int, FakeComm*, void*) { return fakegpu_submit(), 0; }
#endif
}
