package images

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Result is what became of an archive in the import folder; the file .<archive>.result
// has it in JSON. Size and modification time tell for which content.
type Result struct {
	Size     int64            `json:"size"`     // bytes
	Modified int64            `json:"modified"` // nanoseconds since 1970
	Error    string           `json:"error,omitempty"`
	Images   []ResultingImage `json:"images,omitempty"`
}

// ResultingImage is one that was imported.
type ResultingImage struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags,omitempty"`
}

func writeResult(archive string, info os.FileInfo, images []*Image, importErr error) error {
	result := Result{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if importErr != nil {
		result.Error = importErr.Error()
	}
	for _, image := range images {
		result.Images = append(result.Images, ResultingImage{ID: image.ID, Tags: image.RepoTags})
	}
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(archive), "."+filepath.Base(archive)+".result")
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
