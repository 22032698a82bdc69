package disk

import "io/fs"

// isPlanted: Windows has no folder in which all users may write and none may remove what is another's.
func isPlanted(string, fs.FileInfo) (bool, error) { return false, nil }
