// All region records: those that ship with the product, with the site's overrides (regions.d/*.json) laid over them by
// id.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "regions/record.hpp"

namespace shardfit::regions {

class Catalogue {
 public:
  static Catalogue shipped();
  // Shipped records + every *.json of `regions_dir` in the order of their names; "" or an absent folder: shipped alone.
  // A file holds one record or a list. An id that is new makes a new record. Throws Error naming the file.
  static Catalogue load(const std::string& regions_dir);

  const std::vector<Record>& records() const { return records_; }
  // By id ("verda/FIN-03"); letters' case does not matter. nullptr where there is none.
  const Record* find(std::string_view id) const;
  // By seller and the seller's own name of the region, as price rows have them ("Oracle OCI", "eu-zurich-1").
  const Record* find(std::string_view provider, std::string_view provider_region) const;
  // As find, but throws Error{unknown_region} naming the nearest ids.
  const Record& at(std::string_view id, const std::string& where) const;
  void add(Record record);  // replaces one of the same id

 private:
  std::vector<Record> records_;
};

// The short name of a seller in ids: "Oracle OCI" -> "oci", "Vast.ai" -> "vast", "Scaleway (via Shadeform)" ->
// "scaleway-via-shadeform".
std::string provider_slug(std::string_view provider);

}  // namespace shardfit::regions
