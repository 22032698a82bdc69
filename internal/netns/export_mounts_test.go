package netns

// MountPlaces is for tests, which testutil keeps outside.
var MountPlaces = mountPlaces
