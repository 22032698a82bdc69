//go:build race

package profile

// raceDetector makes this process several times as slow.
const raceDetector = true
