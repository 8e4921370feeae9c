// The price book: the dated snapshot that ships with the product, or <state_dir>/prices.db once something was imported.
// It is published by writing a new file and renaming it, and opened read-only, so that a reader never sees half an
// import.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pricing/price_row.hpp"

namespace shardfit::pricing {

class GpuTypes;

struct BookQuery {  // "" = any
  std::string provider, instance, region,
      gpu;  // provider: name or short name ("Oracle OCI" or "oci"); gpu: key of the hardware table or part of a name
};

class Book {
 public:
  // `types` judges GPU names and memories of the snapshot; it must outlive the book. nullptr: those rules are left out.
  static Book shipped(const GpuTypes* types);
  static Book open(const std::string& state_dir,
                   const GpuTypes* types);  // state_dir/prices.db if there is one, else the snapshot

  const std::string& source() const { return source_; }  // file, or "shipped snapshot"
  // The newest row of each key, in the order imported. Verdicts are those of the import; age is judged by whoever uses
  // the row.
  const std::vector<PriceRow>& rows() const;
  std::vector<const PriceRow*> find(const BookQuery& query) const;
  // Every row ever imported for the query: (row, as_of, imported_at). Oldest first.
  std::vector<PriceRow> history(const BookQuery& query) const;

 private:
  std::vector<PriceRow> all_rows() const;
  std::string source_, file_;
  const GpuTypes* types_ = nullptr;
  mutable std::shared_ptr<const std::vector<PriceRow>> rows_;
};

// The snapshot's rows as shipped, without verdicts.
std::vector<PriceRow> snapshot_rows();

struct ImportCounts {
  std::int64_t rows = 0, added = 0, known = 0, accepted = 0, flagged = 0, rejected = 0;
};
// Adds rows (already judged) to state_dir/prices.db, which begins with the snapshot. The same row with the same as_of
// is not booked twice.
ImportCounts import_rows(const std::string& state_dir, const std::vector<PriceRow>& rows, std::int64_t now,
                         const GpuTypes* types);

}  // namespace shardfit::pricing
