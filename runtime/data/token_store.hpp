// A token cache: all tokens of a data source in one file, so that it is tokenized once and read by every rank and every
// later run.
//
//   [tokens u16 or u32][labels i32, where any document has its own][document starts u64][description, JSON][its length
//   u64]["SHFTOK02"]
//
// Tokens of format "tokens" stay in their own files: the description then names them as segments.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace shardfit::data {

inline constexpr std::int32_t kLabelIsToken = INT32_MIN;  // in the cache: the label equals the token

struct Segment {
  std::string file;         // "" = the cache itself
  std::int64_t offset = 0;  // bytes
  int width = 2;            // bytes a token
  std::int64_t tokens = 0;
};

struct StoreDescription {
  std::string key, content_hash;
  std::vector<Segment> segments;
  std::int64_t tokens = 0, documents = 0;
  std::int64_t labels_offset = -1;  // -1 = no labels
  std::int64_t documents_offset = 0;
  std::vector<std::string> warnings;
};

// Appends documents to a file that is published by finish(). Holds 8 bytes a document in memory.
class StoreWriter {
 public:
  StoreWriter(const std::filesystem::path& part, int width);
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;
  ~StoreWriter();  // removes the unpublished file

  void begin_document();
  // Continues the current document. `labels`: empty = each label equals its token.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels);
  void append_segment(Segment segment);        // tokens of another file, continuing the current document
  void begin_document_at(std::int64_t token);  // a document that begins within the segment added last
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(starts_.size()); }

  // Writes the rest, fsyncs and renames to `path`; with an empty path the file stays unnamed and the descriptor is
  // returned (else -1).
  int finish(const std::filesystem::path& path, StoreDescription description);

 private:
  void write(const void* bytes, std::size_t count);
  void flush();
  std::filesystem::path part_;
  int descriptor_ = -1, labels_ = -1;
  int width_;
  std::int64_t tokens_ = 0, own_bytes_ = 0, labelled_ = 0;
  std::vector<std::uint64_t> starts_;
  std::vector<Segment> segments_;
  std::vector<char> buffer_;
};

// A finished cache, open for reading. Safe from several threads.
class TokenStore {
 public:
  explicit TokenStore(const std::filesystem::path& path);  // throws Error{cache_damaged}
  explicit TokenStore(int descriptor);                     // takes it over
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;
  ~TokenStore();

  const StoreDescription& description() const { return description_; }
  std::int64_t document_start(std::int64_t document) const {
    return static_cast<std::int64_t>(starts_[static_cast<std::size_t>(document)]);
  }
  std::int64_t document_end(std::int64_t document) const;
  // First document that begins after token `at`.
  std::int64_t document_after(std::int64_t at) const;
  void read_tokens(std::int64_t first, std::span<std::int32_t> out) const;
  void read_labels(std::int64_t first, std::span<std::int32_t> out, std::span<const std::int32_t> tokens) const;

 private:
  void open();
  std::string name_;
  int descriptor_ = -1;
  StoreDescription description_;
  std::vector<int> segment_descriptors_;
  std::vector<std::int64_t> segment_begins_;
  const std::uint64_t* starts_ = nullptr;  // mapped
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace shardfit::data
