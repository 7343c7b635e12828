package env

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// HoldOut deals distinct texts to the two splits: about percent of them to eval. Which split a text is in depends on the text
// alone, so it stays there when others come or go. Both are ordered by [Hash], so that a prefix is a fair sample.
func HoldOut(texts []string, percent int) (train, eval []string) {
	sorted := slices.Clone(texts)
	slices.SortFunc(sorted, func(a, b string) int { return cmp.Or(cmp.Compare(Hash(a), Hash(b)), cmp.Compare(a, b)) })
	for _, text := range sorted {
		if heldOut(text, percent) {
			eval = append(eval, text)
		} else {
			train = append(train, text)
		}
	}
	return train, eval
}

// Deal deals tasks to the splits by their keys, which are distinct, as [HoldOut] does texts.
func Deal[T any](tasks []T, percent int, key func(T) string) map[Split][]T {
	byKey := map[string]T{}
	keys := make([]string, len(tasks))
	for i, t := range tasks {
		keys[i] = key(t)
		byKey[keys[i]] = t
	}
	train, eval := HoldOut(keys, percent)
	splits := map[Split][]T{}
	for split, dealt := range map[Split][]string{Train: train, Eval: eval} {
		for _, k := range dealt {
			splits[split] = append(splits[split], byKey[k])
		}
	}
	return splits
}

func heldOut(text string, percent int) bool { return Hash(text)%100 < uint64(percent) }

// Hash is the same number for a text on every machine and in every version: FNV-1a with the finaliser of MurmurHash3, since
// the low bits of FNV-1a alone depend on little of the text.
func Hash(text string) uint64 {
	f := fnv.New64a()
	f.Write([]byte(text))
	h := f.Sum64()
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
