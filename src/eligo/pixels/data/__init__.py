"""Images, depth, labels and words: scenes, NYUDepthv2, SUN RGB-D, own files."""
