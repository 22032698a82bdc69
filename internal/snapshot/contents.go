package snapshot

import "time"

// ContentsSchema names the JSON form of Contents.
const ContentsSchema = "natkit.bundle-contents/1"

// Contents is what is in a bundle.
type Contents struct {
	Schema string `json:"schema"`
	// Bundle is the first member, which has the form of the bundle.
	Bundle BundleHeader `json:"bundle"`
	// Bytes is what the members of all recordings have, unpacked.
	Bytes      int64               `json:"unpacked_bytes"`
	Recordings []RecordingContents `json:"recordings"`
}

// RecordingContents is one recording of a bundle.
type RecordingContents struct {
	Netns     Netns              `json:"netns"`
	Owner     *Owner             `json:"owner,omitempty"`
	Snapshots []SnapshotContents `json:"snapshots"`
	// Result is the size of the member that has the recording as it was understood, in bytes.
	Result int64 `json:"recording_json_bytes"`
}

// SnapshotContents is one snapshot of a recording: its members, and how the reading of each part went.
type SnapshotContents struct {
	TakenAt time.Time `json:"taken_at"`
	Members []Member  `json:"members"`
	Parts   []Part    `json:"parts"`
}

// Member is a file of a snapshot by its name there, those of the kernel by their path without the first slash, or
// "table/" for all of the connection table.
type Member struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}
