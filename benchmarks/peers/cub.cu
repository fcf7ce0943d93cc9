// Scans along contiguous rows by CUB's own parts: the kernels that a user of the CUDA toolkit writes.
//
// Compiled once for each kind of scan, with these macros set by scanops/bench/peers/cub.py:
//   INPUT, OUTPUT  types in memory          SUM         the type that is scanned
//   SUM_BYTES      its size, which bounds the tile
//   PRODUCT, REVERSE, EXCLUSIVE, MASKED     0 or 1
//   VECTORS        1 where INPUT, SUM and OUTPUT are one type, so that tiles can be read and written as vectors

#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/reverse_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#define PLAIN (!PRODUCT && !REVERSE && !EXCLUSIVE && !MASKED)

namespace {

struct Combine {
  __host__ __device__ SUM operator()(SUM older, SUM newer) const { return PRODUCT ? older * newer : older + newer; }
};

// Item i of a row, counted in scan order: converted, masked, mirrored.
struct Terms {
  const INPUT* row;
  const unsigned char* mask;
  int length;
  __device__ SUM operator()(int i) const {
    const int at = REVERSE ? length - 1 - i : i;
    const SUM value = static_cast<SUM>(row[at]);
    return !MASKED || mask[at] ? value : static_cast<SUM>(PRODUCT);
  }
};

// ---- a block a row, tile after tile, by BlockLoad, BlockScan and BlockStore ----

struct Carry {
  SUM value;
  __device__ SUM operator()(SUM tile) {
    const SUM before = value;
    value = Combine()(before, tile);
    return before;
  }
};

template <int THREADS, int ITEMS, bool TRANSPOSED>
__global__ void __launch_bounds__(THREADS)
    row_by_block(const INPUT* input, const unsigned char* mask, OUTPUT* output, int length) {
  constexpr auto kLoad = TRANSPOSED ? cub::BLOCK_LOAD_WARP_TRANSPOSE : cub::BLOCK_LOAD_VECTORIZE;
  constexpr auto kStore = TRANSPOSED ? cub::BLOCK_STORE_WARP_TRANSPOSE : cub::BLOCK_STORE_VECTORIZE;
  constexpr int kTile = THREADS * ITEMS;
  using Load = cub::BlockLoad<SUM, THREADS, ITEMS, kLoad>;
  using Scan = cub::BlockScan<SUM, THREADS, cub::BLOCK_SCAN_WARP_SCANS>;
  using Store = cub::BlockStore<OUTPUT, THREADS, ITEMS, kStore>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Scan::TempStorage scan;
    typename Store::TempStorage store;
  } shared;

  const long long first = static_cast<long long>(blockIdx.x) * length;
  Carry carry{static_cast<SUM>(PRODUCT)};
  for (int start = 0; start < length; start += kTile) {
    SUM items[ITEMS];
    OUTPUT results[ITEMS];
    const int valid = min(kTile, length - start);
    if constexpr (TRANSPOSED) {
      const Terms terms{input + first, mask + first, length};
      const auto tile = thrust::make_transform_iterator(thrust::make_counting_iterator(start), terms);
      Load(shared.load).Load(tile, items, valid, static_cast<SUM>(PRODUCT));
    } else {
      Load(shared.load).Load(reinterpret_cast<const SUM*>(input) + first + start, items);  // whole tiles only
    }
    __syncthreads();
    if constexpr (EXCLUSIVE) {
      Scan(shared.scan).ExclusiveScan(items, items, Combine(), carry);
    } else {
      Scan(shared.scan).InclusiveScan(items, items, Combine(), carry);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) results[i] = static_cast<OUTPUT>(items[i]);
    if constexpr (!TRANSPOSED) {
      Store(shared.store).Store(output + first + start, results);
    } else if constexpr (REVERSE) {
      Store(shared.store).Store(thrust::make_reverse_iterator(output + first + length) + start, results, valid);
    } else {
      Store(shared.store).Store(output + first + start, results, valid);
    }
    __syncthreads();
  }
}

template <int THREADS, int ITEMS, bool TRANSPOSED>
int launch_block(const INPUT* input, const unsigned char* mask, OUTPUT* output, long long rows, long long length,
                 cudaStream_t stream) {
  row_by_block<THREADS, ITEMS, TRANSPOSED>
      <<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(input, mask, output, static_cast<int>(length));
  return cudaGetLastError();
}

#if PLAIN

// ---- LANES lanes a row, by WarpScan ----

template <int LANES, int ITEMS>
__global__ void __launch_bounds__(256) row_by_lanes(const INPUT* input, OUTPUT* output, long long rows, int length) {
  using Scan = cub::WarpScan<SUM, LANES>;
  __shared__ typename Scan::TempStorage shared[256 / LANES];
  const long long row = static_cast<long long>(blockIdx.x) * (256 / LANES) + threadIdx.x / LANES;
  const int first = threadIdx.x % LANES * ITEMS;
  SUM items[ITEMS], total = 0;
  const bool whole = length % ITEMS == 0 && ITEMS * sizeof(INPUT) == 16 && sizeof(OUTPUT) == sizeof(INPUT);
  union Vector {
    uint4 bits;
    INPUT items[ITEMS];
  };
  if (whole) {
    Vector vector{};
    if (row < rows && first < length) vector.bits = *reinterpret_cast<const uint4*>(input + row * length + first);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) items[i] = static_cast<SUM>(vector.items[i]);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      items[i] = row < rows && first + i < length ? static_cast<SUM>(input[row * length + first + i]) : SUM(0);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) items[i] = total = total + items[i];
  SUM before = 0;
  if constexpr (LANES > 1) Scan(shared[threadIdx.x / LANES]).ExclusiveSum(total, before);
  if (whole) {
    Vector vector;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) vector.items[i] = static_cast<INPUT>(before + items[i]);
    if (row < rows && first < length) *reinterpret_cast<uint4*>(output + row * length + first) = vector.bits;
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
      if (row < rows && first + i < length) output[row * length + first + i] = static_cast<OUTPUT>(before + items[i]);
  }
}

template <int LANES, int ITEMS>
int launch_lanes(const INPUT* input, OUTPUT* output, long long rows, long long length, cudaStream_t stream) {
  constexpr int kRows = 256 / LANES;
  row_by_lanes<LANES, ITEMS><<<static_cast<unsigned>((rows + kRows - 1) / kRows), 256, 0, stream>>>(
      input, output, rows, static_cast<int>(length));
  return cudaGetLastError();
}

// ---- the device-wide scans ----

struct Convert {
  __host__ __device__ SUM operator()(INPUT value) const { return static_cast<SUM>(value); }
};

struct RowOf {
  unsigned length;
  __host__ __device__ unsigned operator()(unsigned i) const { return i / length; }
};

#endif  // PLAIN

enum Method { kBlockTransposed, kBlockVectors, kLanes, kDevice, kDeviceByKey };

}  // namespace

#define FOR_EACH_TILE(DO) DO(64, 8) DO(128, 4) DO(128, 8) DO(256, 4) DO(256, 8) DO(512, 4) DO(512, 8) DO(1024, 4) WIDE(DO)
#if SUM_BYTES == 4
#define WIDE(DO) DO(256, 16) DO(512, 16) DO(1024, 8)
#else
#define WIDE(DO)
#endif
#define FOR_EACH_GROUP(DO) DO(1, 4) DO(4, 4) DO(8, 4) DO(16, 4) DO(32, 4) DO(32, 8) DO(32, 16)

// 0 when queued; CUDA's error code; -1 where there is no such kernel. `bytes` is set when `workspace` is null.
extern "C" int cub_peer_scan(int method, int threads, int items, const void* input_, const void* mask_, void* output_,
                             long long rows, long long length, void* workspace, size_t* bytes, void* stream_) {
  const INPUT* input = static_cast<const INPUT*>(input_);
  const unsigned char* mask = static_cast<const unsigned char*>(mask_);
  OUTPUT* output = static_cast<OUTPUT*>(output_);
  cudaStream_t stream = static_cast<cudaStream_t>(stream_);
#define TRANSPOSED_BLOCK(T, I) \
  if (method == kBlockTransposed && threads == T && items == I) \
    return launch_block<T, I, true>(input, mask, output, rows, length, stream);
  FOR_EACH_TILE(TRANSPOSED_BLOCK)
#if PLAIN && VECTORS
#define VECTOR_BLOCK(T, I) \
  if (method == kBlockVectors && threads == T && items == I) \
    return launch_block<T, I, false>(input, mask, output, rows, length, stream);
  FOR_EACH_TILE(VECTOR_BLOCK)
#endif
#if PLAIN
#define LANES_GROUP(L, I) \
  if (method == kLanes && threads == L && items == I) \
    return launch_lanes<L, I>(input, output, rows, length, stream);
  FOR_EACH_GROUP(LANES_GROUP)
  const auto values = thrust::make_transform_iterator(input, Convert{});
  if (method == kDevice)
    return cub::DeviceScan::InclusiveScan(workspace, *bytes, values, output, Combine(), rows * length, stream);
  if (method == kDeviceByKey) {
    const auto keys =
        thrust::make_transform_iterator(thrust::make_counting_iterator(0u), RowOf{static_cast<unsigned>(length)});
    return cub::DeviceScan::InclusiveScanByKey(workspace, *bytes, keys, values, output, Combine(), rows * length,
                                               cuda::std::equal_to<>(), stream);
  }
#endif
  return -1;
}
