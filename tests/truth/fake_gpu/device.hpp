// The pretended GPU: its properties, how much of its memory is taken, what a stream has done. It lives in the stand-in for
// libcuda.so.1; the stand-ins for the other libraries call it. Plain C names, so that nothing but these leaves the library.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct FakeGpuProperties {
  const char* name;
  std::uint64_t memory;            // cudaDeviceProp::totalGlobalMem
  int major, minor, multiprocessors;
  int threads_per_multiprocessor, blocks_per_multiprocessor;
  int shared_per_multiprocessor, shared_per_block_optin;
  int l2_bytes;
};

struct FakeGpuEvent {
  std::uint64_t stamp;             // work submitted before it was recorded; 0: never recorded
};

const FakeGpuProperties* fakegpu_properties();
int fakegpu_device_count();

// Memory. Device addresses are real, never-touched pages of this process, so that what is read without having been written is zero.
void* fakegpu_allocate(std::size_t bytes);                 // null: more than the device has
bool fakegpu_free(void* address);                          // false: not an address that was given
bool fakegpu_take(std::size_t bytes);                      // count bytes without an address (cuMemCreate)
void fakegpu_give_back(std::size_t bytes);
void* fakegpu_reserve(std::size_t bytes);                  // addresses without memory (cuMemAddressReserve)
void fakegpu_unreserve(void* address, std::size_t bytes);
void fakegpu_memory(std::size_t* free_bytes, std::size_t* total_bytes);
bool fakegpu_is_device(const void* address);
void* fakegpu_host_allocate(std::size_t bytes);
bool fakegpu_host_free(void* address);
void fakegpu_host_register(const void* address, std::size_t bytes);
bool fakegpu_host_unregister(const void* address);
bool fakegpu_is_pinned(const void* address);

// Work. Nothing is computed; only copies of at most 1 MiB are carried out (they carry counts and pickled objects).
void fakegpu_submit();                                     // a kernel was launched
void fakegpu_copy(void* to, const void* from, std::size_t bytes);
void fakegpu_set(void* to, int value, std::size_t bytes);
void fakegpu_synchronize();                                // everything submitted so far has ended
void fakegpu_record(FakeGpuEvent* event);
bool fakegpu_done(const FakeGpuEvent* event);
}
