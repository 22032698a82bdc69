package netns

// MountPlaces is for tests, which testutil keeps outside.
var MountPlaces = mountPlaces

// ReadMountinfo gives what a search misses by the mountinfo of a task.
func ReadMountinfo(task string) (ok bool, missed error) {
	s := &search{}
	_, ok = s.mountinfo(task)
	return ok, s.missed
}
