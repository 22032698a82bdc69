package netns

// MountPlaces is for tests, which testutil keeps outside.
func MountPlaces(text string) (paths []string) {
	for _, p := range mountPlaces(text) {
		paths = append(paths, p.path)
	}
	return paths
}

// ReadMountinfo gives what a search misses by the mountinfo of a task.
func ReadMountinfo(task string) (ok bool, missed error) {
	s := &search{}
	_, ok = s.mountinfo(task)
	return ok, s.missed
}

// EachPlace walks where namespaces are found.
func EachPlace(fn func(inode uint64)) {
	for p := range new(search).places() {
		fn(p.inode)
	}
}
