"""Captioned images: scenes, Flickr30K, COCO, own files."""
